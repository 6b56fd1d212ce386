"""The number of operations of a call, for `torch.utils.flop_counter.FlopCounterMode`.

A product and its addition are two operations, as in PyTorch's own formulas. Only work that grows with the channels
counts, because the position of a sample costs only as much as about three channels.
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
        # The gradient of the values adds to four pixels. All other gradients together need four products of pixels and
        # the upstream gradient.
        wanted = wanted_of(shapes)
        return (int(wanted[0]) + int(any(wanted[1:]))) * _forward_flops(shapes[0], shapes[last])

    return forward, backward


def tell(counter: Any) -> None:
    """Registers the formulas with PyTorch's counter, `torch.utils.flop_counter`."""
    for operator in OPERATORS:
        names = operator.name, f"{operator.name}_backward"
        for name, formula in zip(names, _formulas(operator), strict=True):
            packet = getattr(torch.ops.msdeform, name)
            counter.register_flop_formula(packet)(formula)
            # torch 2.4 registers the overloads instead, and then looks for the operator.
            counter.flop_registry.setdefault(packet, counter.flop_registry.get(packet.default))
