"""What a call counts for in `torch.utils.flop_counter.FlopCounterMode`.

A product and its addition are two operations there, as in PyTorch's own formulas. Only what grows with the channels
counts: placing a sample costs about as much as three channels of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ._operators import OPERATORS, Operator, wanted_of

# Four pixels of a sample, a product and an addition each.
_FLOPS_OF_FOUR_PIXELS = 8


def _forward_flops(value: Sequence[int], shares: Sequence[int]) -> int:
    return _FLOPS_OF_FOUR_PIXELS * math.prod(shares) * value[3]


def _formulas(operator: Operator) -> tuple[Any, Any]:
    """The formulas of both directions, from the shapes of the tensors."""
    last = len(operator.inputs) - 1

    def forward(*shapes: Any, **_: Any) -> int:
        return _forward_flops(shapes[0], shapes[last])

    def backward(grad_output: Any, *shapes: Any, **_: Any) -> int:
        # The gradient of the values adds to four pixels. Those of all that places and weighs samples follow from four
        # products of pixels and upstream gradient, once for all of them.
        wanted = wanted_of(shapes)
        return (int(wanted[0]) + int(any(wanted[1:]))) * _forward_flops(shapes[0], shapes[last])

    return forward, backward


def tell(counter: Any) -> None:
    """Tells PyTorch's counter, `torch.utils.flop_counter`."""
    for operator in OPERATORS:
        names = operator.name, f"{operator.name}_backward"
        for name, formula in zip(names, _formulas(operator), strict=True):
            packet = getattr(torch.ops.msdeform, name)
            counter.register_flop_formula(packet)(formula)
            # torch 2.4 registers the overloads instead, and then looks for the operator.
            counter.flop_registry.setdefault(packet, counter.flop_registry.get(packet.default))
