"""The packages that are known. To add one, describe it and put it into the list at the end.

Each entry names the functions and layers of a package whose calls are known. What the words mean is in `data`.
"""

from torch import nn

from . import data
from .data import HEADS, LEVELS, POINTS, WIDTH, AutogradFunction, Function, Inner, Layer, Package, parameters

_TENSORS = parameters("value, value_spatial_shapes, sampling_locations, attention_weights")
_POINT_LIST = (*_TENSORS, "num_points_list", "method")
_EXTENSION = parameters(
    "value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step"
)
# The slow path and the compiled path of several packages.
_SLOW_PATH = Function("multi_scale_deformable_attn_pytorch", (_TENSORS,))
_COMPILED = AutogradFunction("MultiScaleDeformableAttnFunction", (_EXTENSION,))

# The projections of layers of the Deformable-DETR family.
_PROJECTIONS = {
    "sampling_offsets": data.Projection(HEADS * LEVELS * POINTS * 2),
    "attention_weights": data.Projection(HEADS * LEVELS * POINTS),
    "value_proj": data.Projection(WIDTH),
    "output_proj": data.Projection(WIDTH),
}
_SIZES = {"d_model": WIDTH, "n_heads": HEADS, "n_levels": LEVELS, "n_points": POINTS}
_USUAL = {**_SIZES, **_PROJECTIONS}

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

_IN_MOST_MODELS = Layer(
    _SUFFIX,
    _TRANSFORMERS_CALLS,
    attributes={
        **_USUAL,
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
        **_USUAL,
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
        **{name: size for name, size in _USUAL.items() if name not in ("n_points", "value_proj", "output_proj")},
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
        Function("multi_scale_deformable_attention", (_TENSORS,)),
        Function("multi_scale_deformable_attention_v2", (_POINT_LIST,)),
    ),
    layers=(_IN_MOST_MODELS, _RT_DETR_V2, _D_FINE),
)

# ultralytics: RT-DETR. Locations are `[N, Lq, M, L, P, 2]` up to 8.3 and `[N, Lq, M, L * P, 2]` in 8.4.
ULTRALYTICS = Package(
    name="ultralytics",
    modules=("ultralytics.nn",),
    tops=("ultralytics",),
    places=(_SLOW_PATH,),
    layers=(
        Layer(
            "MSDeformAttn",
            (parameters("query, refer_bbox, value, value_shapes, value_mask"),),
            attributes=_USUAL,
            functions=("multi_scale_deformable_attn_pytorch",),
            one_box=("",),
        ),
    ),
)

# rfdetr: values are `[N, M, D, S]`, and newer versions pass the shapes as numbers in addition to the tensor.
_RFDETR_CALL = parameters(
    "query, reference_points, input_flatten, input_spatial_shapes, input_level_start_index, input_padding_mask"
)

# A slow path, of Deformable-DETR too.
_CORE = Function(
    "ms_deform_attn_core_pytorch",
    (_TENSORS, (*_TENSORS, "value_spatial_shapes_hw")),
    layouts=(data.PIXELS, data.CHANNELS),
)

RFDETR = Package(
    name="rfdetr",
    modules=("rfdetr",),
    tops=("rfdetr",),
    places=(Function(_CORE.name, _CORE.calls, layouts=(data.CHANNELS,)),),
    layers=(
        Layer(
            "MSDeformAttn",
            (_RFDETR_CALL, (*_RFDETR_CALL, "input_spatial_shapes_hw")),
            attributes={**_USUAL, "_export": False},
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
    places=(_SLOW_PATH, _COMPILED),
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
                **_PROJECTIONS,
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
    name="groundingdino", modules=("groundingdino",), tops=("groundingdino",), places=(_SLOW_PATH, _COMPILED)
)

# RT-DETR 1 and 2, D-FINE, DEIM and what was copied from them: programs rather than packages, in any module.
FUNCTIONS = (
    Function("deformable_attention_core_func", (_TENSORS,)),
    Function(
        "deformable_attention_core_func_v2",
        (_POINT_LIST[:-1], _POINT_LIST, (*_POINT_LIST, "value_shape"), (*_POINT_LIST, "allow_acceleration")),
        layouts=(data.PIXELS, data.LEVEL_LIST, data.IMAGE_LIST),
    ),
)

DETR = Package(name="detr", modules=(), tops=(), places=FUNCTIONS)

# Deformable-DETR and its relatives (DINO, Mask2Former, detrex): programs rather than packages, in any module.
DETECTRON2 = Package(
    name="detectron2",
    modules=(),
    tops=("detectron2", "detrex"),
    places=(_CORE, _SLOW_PATH, AutogradFunction("MSDeformAttnFunction", (_EXTENSION,)), _COMPILED),
    # Its layers call a compiled half of their own, `detrex._C`, which only their functions touch: those are replaced.
    aliases=("detrex",),
    takes_extension=True,
)

# LibreYOLO: the functions of RT-DETR, D-FINE, DEIM, RF-DETR and Deformable-DETR, each in a module of its own.
LIBREYOLO = Package(
    name="libreyolo", modules=("libreyolo",), tops=("libreyolo",), places=(*FUNCTIONS, _CORE, _SLOW_PATH)
)

# Those of a single package first: they know more about it than those that may be anywhere.
PACKAGES = (TRANSFORMERS, ULTRALYTICS, RFDETR, LIBREYOLO, RTDETR, MMCV, GROUNDINGDINO, DETR, DETECTRON2)
