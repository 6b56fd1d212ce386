"""What a call counts for in `torch.utils.flop_counter.FlopCounterMode`.

A product and its addition are two operations there, as in PyTorch's own formulas. Only what grows with the channels
counts: placing a sample costs about as much as three channels of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._schema import BACKWARD, FORWARD, FROM_OFFSETS, FROM_OFFSETS_BACKWARD

__all__ = ["backward_flops", "forward_flops", "tell"]

# Four pixels of a sample, a product and an addition each.
_FLOPS_OF_FOUR_PIXELS = 8


def forward_flops(value: Sequence[int], locations: Sequence[int], weights: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of the forward pass, from the shapes of its tensors."""
    return _FLOPS_OF_FOUR_PIXELS * math.prod(weights) * value[3]


def backward_flops(
    grad_output: Sequence[int],
    value: Sequence[int],
    locations: Sequence[int],
    weights: Sequence[int],
    *rest: Any,
    **keywords: Any,
) -> int:
    """Operations of the backward pass. The gradient of the values adds to four pixels; those of locations and weights
    follow from four products of pixels and upstream gradient, for either or for both."""
    wanted = next(item for item in reversed(rest) if isinstance(item, (list, tuple)))
    return (int(wanted[0]) + int(wanted[1] or wanted[2])) * forward_flops(value, locations, weights)


def _forward_from_offsets(
    value: Sequence[int], references: Sequence[int], offsets: Sequence[int], logits: Sequence[int], *_: Any, **__: Any
) -> int:
    return forward_flops(value, offsets, logits)


def _backward_from_offsets(
    grad_output: Sequence[int],
    value: Sequence[int],
    references: Sequence[int],
    offsets: Sequence[int],
    logits: Sequence[int],
    *rest: Any,
    **keywords: Any,
) -> int:
    wanted = next(item for item in reversed(rest) if isinstance(item, (list, tuple)))
    return backward_flops(grad_output, value, offsets, logits, [wanted[0], any(wanted[1:]), False])


def tell(counter: Any) -> None:
    """Tells PyTorch's counter, `torch.utils.flop_counter`."""
    for operator, formula in (
        (FORWARD, forward_flops),
        (BACKWARD, backward_flops),
        (FROM_OFFSETS, _forward_from_offsets),
        (FROM_OFFSETS_BACKWARD, _backward_from_offsets),
    ):
        counter.register_flop_formula(operator)(formula)
        # torch 2.4 registers the overloads instead, and then looks for the operator.
        counter.flop_registry.setdefault(operator, counter.flop_registry.get(operator.default))
