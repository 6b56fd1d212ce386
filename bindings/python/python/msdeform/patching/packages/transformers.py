"""transformers: a layer in most of its models, functions in Mask2Former, RT-DETRv2, D-FINE and their relatives."""

from ..data import POINT_LIST, TENSORS, Function, Package

_LAYER = (
    "self",
    "value",
    "value_spatial_shapes",
    "value_spatial_shapes_list",
    "level_start_index",
    "sampling_locations",
    "attention_weights",
    "im2col_step",
)

PACKAGE = Package(
    name="transformers",
    modules=("transformers.models",),
    tops=("transformers",),
    places=(
        Function("MultiScaleDeformableAttention.forward", (_LAYER,)),
        Function("multi_scale_deformable_attention", (TENSORS,)),
        Function("multi_scale_deformable_attention_v2", (POINT_LIST,)),
    ),
)
