"""rtdetr, the package of that name."""

from ..data import Function, Package

_CALL = ("value", "spatial_shapes", "sampling_locations", "attention_weights")

PACKAGE = Package(
    name="rtdetr", modules=("rtdetr",), tops=("rtdetr",), places=(Function("deformable_attention", (_CALL,)),)
)
