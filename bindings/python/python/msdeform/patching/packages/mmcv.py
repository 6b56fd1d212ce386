"""mmcv, whose operator mmdet uses."""

from torch import nn

from ..data import (
    EXTENSION,
    HEADS,
    LEVELS,
    POINTS,
    PROJECTIONS,
    TENSORS,
    WIDTH,
    AutogradFunction,
    Function,
    Layer,
    Package,
)

PACKAGE = Package(
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
                (
                    "query",
                    "key",
                    "value",
                    "identity",
                    "query_pos",
                    "key_padding_mask",
                    "reference_points",
                    "spatial_shapes",
                    "level_start_index",
                    "kwargs",
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
