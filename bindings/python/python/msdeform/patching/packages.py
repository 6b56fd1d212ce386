"""The packages that are known. To add one, describe it and put it into the list at the end.

Each entry names the functions and layers of a package whose calls are known. What the words mean is in `data`.
"""

from torch import nn

from .data import (
    CHANNELS,
    EXTENSION,
    HEADS,
    IMAGE_LIST,
    LEVEL_LIST,
    LEVELS,
    PIXELS,
    POINT_LIST,
    POINTS,
    PROJECTIONS,
    SIZES,
    TENSORS,
    WIDTH,
    AutogradFunction,
    Function,
    Inner,
    Layer,
    Package,
    parameters,
)

# transformers: a layer in most of its models, functions in Mask2Former, RT-DETRv2, D-FINE and their relatives.
_LAYER = parameters(
    "self, value, value_spatial_shapes, value_spatial_shapes_list, level_start_index, sampling_locations, "
    "attention_weights, im2col_step"
)

# `forward` of a whole layer up to its shapes; and how it ends, in this order.
_BEFORE = parameters(
    "hidden_states, attention_mask, encoder_hidden_states, encoder_attention_mask, position_embeddings, "
    "reference_points"
)
_TRANSFORMERS_CALLS = tuple(
    (*_BEFORE, *parameters(shapes))
    for shapes in (
        "spatial_shapes, spatial_shapes_list, level_start_index, kwargs",
        "spatial_shapes, spatial_shapes_list, level_start_index, output_attentions",
        # OneFormer, and most in 4.45.
        "spatial_shapes, level_start_index, output_attentions",
        "spatial_shapes, level_start_index, output_attentions, spatial_shapes_list",
        # Mask2Former.
        "spatial_shapes_list, level_start_index, output_attentions",
    )
)
_SUFFIX = "MultiscaleDeformableAttention"

_USUAL = Layer(
    _SUFFIX,
    _TRANSFORMERS_CALLS,
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
    _TRANSFORMERS_CALLS[:2],
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
_OF_D_FINE = parameters(
    "hidden_states, attention_mask, reference_points, encoder_hidden_states, spatial_shapes, spatial_shapes_list"
)
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

TRANSFORMERS = Package(
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

# ultralytics: RT-DETR. Locations are `[N, Lq, M, L, P, 2]` up to 8.3 and `[N, Lq, M, L * P, 2]` in 8.4.
ULTRALYTICS = Package(
    name="ultralytics",
    modules=("ultralytics.nn",),
    tops=("ultralytics",),
    places=(Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),),
    layers=(
        Layer(
            "MSDeformAttn",
            (parameters("query, refer_bbox, value, value_shapes, value_mask"),),
            attributes={**SIZES, **PROJECTIONS},
            functions=("multi_scale_deformable_attn_pytorch",),
            one_box=("",),
        ),
    ),
)

# rfdetr: values are `[N, M, D, S]`, and newer versions pass the shapes as numbers in addition to the tensor.
_RFDETR_CALL = parameters(
    "query, reference_points, input_flatten, input_spatial_shapes, input_level_start_index, input_padding_mask"
)

RFDETR = Package(
    name="rfdetr",
    modules=("rfdetr",),
    tops=("rfdetr",),
    places=(
        Function("ms_deform_attn_core_pytorch", (TENSORS, (*TENSORS, "value_spatial_shapes_hw")), layouts=(CHANNELS,)),
    ),
    layers=(
        Layer(
            "MSDeformAttn",
            (_RFDETR_CALL, (*_RFDETR_CALL, "input_spatial_shapes_hw")),
            attributes={**SIZES, **PROJECTIONS, "_export": False},
            # A layer that is about to be exported lays its tensors out otherwise.
            expected={"_export": False},
            functions=("ms_deform_attn_core_pytorch",),
        ),
    ),
)

# rtdetr, the package of that name.
_RTDETR_CALL = parameters("value, spatial_shapes, sampling_locations, attention_weights")

RTDETR = Package(
    name="rtdetr", modules=("rtdetr",), tops=("rtdetr",), places=(Function("deformable_attention", (_RTDETR_CALL,)),)
)

# mmcv, whose operator mmdet uses.
MMCV = Package(
    name="mmcv",
    modules=("mmcv.ops",),
    tops=("mmcv",),
    aliases=("mmdet",),
    places=(
        Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),
        AutogradFunction("MultiScaleDeformableAttnFunction", (EXTENSION,)),
    ),
    layers=(
        Layer(
            "MultiScaleDeformableAttention",
            (
                parameters(
                    "query, key, value, identity, query_pos, key_padding_mask, reference_points, spatial_shapes, "
                    "level_start_index, kwargs"
                ),
            ),
            attributes={
                **PROJECTIONS,
                "embed_dims": WIDTH,
                "num_heads": HEADS,
                "num_levels": LEVELS,
                "num_points": POINTS,
                "im2col_step": 64,
                "batch_first": False,
                "dropout": nn.Identity,
            },
            functions=("multi_scale_deformable_attn_pytorch",),
            heads="num_heads",
            points="num_points",
            batch_first="batch_first",
        ),
    ),
)

# Grounding DINO: groundingdino-py has the slow path, its relatives the extension too.
GROUNDINGDINO = Package(
    name="groundingdino",
    modules=("groundingdino",),
    tops=("groundingdino",),
    places=(
        Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),
        AutogradFunction("MultiScaleDeformableAttnFunction", (EXTENSION,)),
    ),
)

# RT-DETR 1 and 2, D-FINE, DEIM and what was copied from them: programs rather than packages, in any module.
FUNCTIONS = (
    Function("deformable_attention_core_func", (TENSORS,)),
    Function(
        "deformable_attention_core_func_v2",
        (
            POINT_LIST[:-1],
            POINT_LIST,
            (*POINT_LIST, "value_shape"),
            (*POINT_LIST, "allow_acceleration"),
        ),
        layouts=(PIXELS, LEVEL_LIST, IMAGE_LIST),
    ),
)

DETR = Package(name="detr", modules=(), tops=(), places=FUNCTIONS)

# Deformable-DETR and its relatives (DINO, Mask2Former, detrex): programs rather than packages, in any module.
SLOW_PATHS = (
    Function(
        "ms_deform_attn_core_pytorch",
        (TENSORS, (*TENSORS, "value_spatial_shapes_hw")),
        layouts=(PIXELS, CHANNELS),
    ),
    Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),
)

DETECTRON2 = Package(
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

# LibreYOLO: the functions of RT-DETR, D-FINE, DEIM, RF-DETR and Deformable-DETR, each in a module of its own.
LIBREYOLO = Package(name="libreyolo", modules=("libreyolo",), tops=("libreyolo",), places=(*FUNCTIONS, *SLOW_PATHS))

# Those of a single package first: they know more about it than those that may be anywhere.
PACKAGES = (TRANSFORMERS, ULTRALYTICS, RFDETR, LIBREYOLO, RTDETR, MMCV, GROUNDINGDINO, DETR, DETECTRON2)
