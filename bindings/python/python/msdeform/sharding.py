"""Sharding rules for DTensor: by images, by heads or by queries."""

from __future__ import annotations

from typing import Any

import torch

from . import operator as operator  # For the kernels that it registers.
from ._operators import OPERATORS, wanted_of

__all__ = ["register_sharding"]

_registered = False


def register_sharding() -> None:
    """Teaches DTensor to keep the operators sharded instead of gathering their inputs.

    Needs PyTorch 2.6 or newer. Calling it again changes nothing.
    """
    global _registered
    if _registered:
        return
    try:
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor.experimental import register_sharding as register
    except ImportError as error:
        raise RuntimeError(
            f"found PyTorch {torch.__version__}; sharding rules need 2.6 or newer, built with torch.distributed"
        ) from error

    def heads_divide(value: Any) -> bool:
        # Heads are a part of the output's last axis: pieces must be whole heads, the same on every device.
        return all(value.shape[2] % size == 0 for size in value.mesh.shape)

    everywhere, images, queries, heads = Replicate(), Shard(0), Shard(1), Shard(2)
    summed = Partial("sum")

    def rules_of(inputs: Any, value: Any) -> Any:
        """Allowed placements of the output, the inputs and their gradients."""
        count = len(inputs)
        yield everywhere, (everywhere,) * count, (everywhere,) * count
        yield images, (images,) * count, (images,) * count
        # Every device has all values and some of the queries, so the gradients of the values are sums.
        others = (queries,) * (count - 1)
        yield queries, (everywhere, *others), (summed, *others)
        # Gradients of tensors that all heads share are sums.
        if heads_divide(value):
            by_heads = [(everywhere, summed) if each.head_axis is None else (heads, heads) for each in inputs]
            yield heads, tuple(place for place, _ in by_heads), tuple(place for _, place in by_heads)

    def forward_of(inputs: Any) -> Any:
        def forward(value: Any, *rest: Any) -> list[Any]:
            others = [None] * (1 + len(rest) - len(inputs))
            return [([output], [*places, *others]) for output, places, _ in rules_of(inputs, value)]

        return forward

    def backward_of(inputs: Any) -> Any:
        def backward(grad_output: Any, value: Any, *rest: Any) -> list[Any]:
            others = [None] * (1 + len(rest) - len(inputs))
            # A gradient that is not wanted is an empty tensor, which cannot be sharded.
            wanted = wanted_of(rest)
            return [
                (
                    [place if is_wanted else everywhere for place, is_wanted in zip(gradients, wanted, strict=True)],
                    [output, *places, *others],
                )
                for output, places, gradients in rules_of(inputs, value)
            ]

        return backward

    for each in OPERATORS:
        register(each.numbers.forward)(forward_of(each.inputs))
        register(each.numbers.backward)(backward_of(each.inputs))
    _registered = True
