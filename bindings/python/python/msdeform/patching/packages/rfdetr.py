"""rfdetr: values are `[N, M, D, S]`, and newer versions say the shapes as numbers beside the tensor."""

from ..data import CHANNELS, TENSORS, Function, Package

PACKAGE = Package(
    name="rfdetr",
    modules=("rfdetr",),
    tops=("rfdetr",),
    places=(
        Function("ms_deform_attn_core_pytorch", (TENSORS, (*TENSORS, "value_spatial_shapes_hw")), layouts=(CHANNELS,)),
    ),
)
