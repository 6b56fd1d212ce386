"""transformers: a layer in most of its models, functions in Mask2Former, RT-DETRv2, D-FINE and their relatives."""

from ..data import (
    HEADS,
    LEVELS,
    POINT_LIST,
    POINTS,
    PROJECTIONS,
    SIZES,
    TENSORS,
    WIDTH,
    Function,
    Inner,
    Layer,
    Package,
)

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

# `forward` of a whole layer up to its shapes; and how it ends, in this order.
_BEFORE = (
    "hidden_states",
    "attention_mask",
    "encoder_hidden_states",
    "encoder_attention_mask",
    "position_embeddings",
    "reference_points",
)
_CALLS = tuple(
    (*_BEFORE, *shapes)
    for shapes in (
        ("spatial_shapes", "spatial_shapes_list", "level_start_index", "kwargs"),
        ("spatial_shapes", "spatial_shapes_list", "level_start_index", "output_attentions"),
        # OneFormer, and most in 4.45.
        ("spatial_shapes", "level_start_index", "output_attentions"),
        ("spatial_shapes", "level_start_index", "output_attentions", "spatial_shapes_list"),
        # Mask2Former.
        ("spatial_shapes_list", "level_start_index", "output_attentions"),
    )
)
_SUFFIX = "MultiscaleDeformableAttention"

_USUAL = Layer(
    _SUFFIX,
    _CALLS,
    attributes={
        **SIZES,
        **PROJECTIONS,
        "attn": Inner("MultiScaleDeformableAttention"),
        "im2col_step": 64,
        "disable_custom_kernels": True,
    },
    functions=("multi_scale_deformable_attention",),
    one_box=("RTDetr", "OmDetTurbo", "PPDocLayout"),
)
_RT_DETR_V2 = Layer(
    _SUFFIX,
    _CALLS[:2],
    attributes={
        **SIZES,
        **PROJECTIONS,
        "offset_scale": 0.3,
        "method": "default",
        "n_points_list": [POINTS] * LEVELS,
        "n_points_scale": (1 / POINTS,) * (POINTS * LEVELS),
    },
    expected={"method": "default"},
    functions=("multi_scale_deformable_attention_v2",),
    offset_scale="offset_scale",
    one_box=("",),
)
_OF_D_FINE = ("hidden_states", "attention_mask", "reference_points", "encoder_hidden_states", *_CALLS[0][6:8])
_POINTS_OF_D_FINE = [POINTS - 1, POINTS, POINTS + 1]
_D_FINE = Layer(
    _SUFFIX,
    (_OF_D_FINE, (*_OF_D_FINE, "kwargs")),
    attributes={
        "d_model": WIDTH,
        "n_heads": HEADS,
        "n_levels": LEVELS,
        "sampling_offsets": PROJECTIONS["sampling_offsets"],
        "attention_weights": PROJECTIONS["attention_weights"],
        "offset_scale": 0.3,
        "decoder_method": "default",
        "num_points_list": _POINTS_OF_D_FINE,
        "num_points_scale": tuple(1 / count for count in _POINTS_OF_D_FINE for _ in range(count)),
        "ms_deformable_attn_core": Inner("multi_scale_deformable_attention_v2"),
    },
    expected={"decoder_method": "default"},
    points="num_points_list",
    offset_scale="offset_scale",
    one_box=("",),
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
    layers=(_USUAL, _RT_DETR_V2, _D_FINE),
)
