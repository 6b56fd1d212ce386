"""Deformable-DETR and its relatives (DINO, Mask2Former, detrex): programs rather than packages, in any module."""

from ..data import CHANNELS, EXTENSION, PIXELS, TENSORS, AutogradFunction, Function, Package

SLOW_PATHS = (
    Function(
        "ms_deform_attn_core_pytorch",
        (TENSORS, (*TENSORS, "value_spatial_shapes_hw")),
        layouts=(PIXELS, CHANNELS),
    ),
    Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),
)

PACKAGE = Package(
    name="detectron2",
    modules=(),
    tops=("detectron2", "detrex"),
    places=(
        *SLOW_PATHS,
        AutogradFunction("MSDeformAttnFunction", (EXTENSION,)),
        AutogradFunction("MultiScaleDeformableAttnFunction", (EXTENSION,)),
    ),
    # Its layers call a compiled half of their own, `detrex._C`, which only their functions touch: those are replaced.
    aliases=("detrex",),
    takes_extension=True,
)
