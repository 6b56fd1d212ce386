"""RT-DETR 1 and 2, D-FINE, DEIM and what was copied from them: programs rather than packages, in any module."""

from ..data import IMAGE_LIST, LEVEL_LIST, PIXELS, POINT_LIST, TENSORS, Function, Package

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

PACKAGE = Package(name="detr", modules=(), tops=(), places=FUNCTIONS)
