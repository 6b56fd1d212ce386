"""ultralytics: RT-DETR. Locations are `[N, Lq, M, L, P, 2]` up to 8.3 and `[N, Lq, M, L * P, 2]` in 8.4."""

from ..data import TENSORS, Function, Package

PACKAGE = Package(
    name="ultralytics",
    modules=("ultralytics.nn",),
    tops=("ultralytics",),
    places=(Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),),
)
