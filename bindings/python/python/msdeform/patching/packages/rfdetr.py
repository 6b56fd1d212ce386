"""rfdetr: values are `[N, M, D, S]`, and newer versions pass the shapes as numbers in addition to the tensor."""

from ..data import CHANNELS, PROJECTIONS, SIZES, TENSORS, Function, Layer, Package

_CALL = (
    "query",
    "reference_points",
    "input_flatten",
    "input_spatial_shapes",
    "input_level_start_index",
    "input_padding_mask",
)

PACKAGE = Package(
    name="rfdetr",
    modules=("rfdetr",),
    tops=("rfdetr",),
    places=(
        Function("ms_deform_attn_core_pytorch", (TENSORS, (*TENSORS, "value_spatial_shapes_hw")), layouts=(CHANNELS,)),
    ),
    layers=(
        Layer(
            "MSDeformAttn",
            (_CALL, (*_CALL, "input_spatial_shapes_hw")),
            attributes={**SIZES, **PROJECTIONS, "_export": False},
            # A layer that is about to be exported lays its tensors out otherwise.
            expected={"_export": False},
            functions=("ms_deform_attn_core_pytorch",),
        ),
    ),
)
