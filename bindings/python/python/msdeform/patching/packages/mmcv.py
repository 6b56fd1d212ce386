"""mmcv, whose operator mmdet uses."""

from ..data import EXTENSION, TENSORS, AutogradFunction, Function, Package

PACKAGE = Package(
    name="mmcv",
    modules=("mmcv.ops",),
    tops=("mmcv",),
    aliases=("mmdet",),
    places=(
        Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),
        AutogradFunction("MultiScaleDeformableAttnFunction", (EXTENSION,)),
    ),
)
