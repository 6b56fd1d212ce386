"""Grounding DINO: groundingdino-py has the slow path, its relatives the extension too."""

from ..data import EXTENSION, TENSORS, AutogradFunction, Function, Package

PACKAGE = Package(
    name="groundingdino",
    modules=("groundingdino",),
    tops=("groundingdino",),
    places=(
        Function("multi_scale_deformable_attn_pytorch", (TENSORS,)),
        AutogradFunction("MultiScaleDeformableAttnFunction", (EXTENSION,)),
    ),
)
