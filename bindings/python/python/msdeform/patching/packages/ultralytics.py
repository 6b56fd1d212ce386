"""ultralytics: RT-DETR. Locations are `[N, Lq, M, L, P, 2]` up to 8.3 and `[N, Lq, M, L * P, 2]` in 8.4."""

from ..data import PROJECTIONS, SIZES, TENSORS, Function, Layer, Package

PACKAGE = Package(
    name="ultralytics",
    modules=("ultralytics.nn",),
    tops=("ultralytics",),
    places=(Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),),
    layers=(
        Layer(
            "MSDeformAttn",
            (("query", "refer_bbox", "value", "value_shapes", "value_mask"),),
            attributes={**SIZES, **PROJECTIONS},
            functions=("multi_scale_deformable_attn_pytorch",),
            one_box=("",),
        ),
    ),
)
