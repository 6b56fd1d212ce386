"""How the operator is shared out over several devices by DTensor: by images, by heads or by queries."""

from __future__ import annotations

from typing import Any

import torch

from . import operator

__all__ = ["register_sharding"]

_registered = False


def register_sharding() -> None:
    """Teaches DTensor to keep the operator sharded instead of gathering its inputs.

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
            f"sharding rules need PyTorch 2.6 or newer with torch.distributed; this is {torch.__version__}"
        ) from error

    def heads_divide(value: Any) -> bool:
        # Heads are a part of the output's last axis: pieces must be whole heads, the same on every device.
        return all(value.shape[2] % size == 0 for size in value.mesh.shape)

    def forward(value: Any, locations: Any, weights: Any, *rest: Any) -> list[Any]:
        others = [None] * len(rest)
        rules: list[Any] = [
            ([Replicate()], [Replicate(), Replicate(), Replicate(), *others]),
            # Images.
            ([Shard(0)], [Shard(0), Shard(0), Shard(0), *others]),
            # Queries; every device has all values.
            ([Shard(1)], [Replicate(), Shard(1), Shard(1), *others]),
        ]
        if heads_divide(value):
            rules.append(([Shard(2)], [Shard(2), Shard(2), Shard(2), *others]))
        return rules

    def backward(grad_output: Any, value: Any, locations: Any, weights: Any, *rest: Any) -> list[Any]:
        others = [None] * len(rest)
        everywhere = Replicate()
        rules: list[Any] = [
            ([everywhere] * 3, [everywhere] * 4 + others),
            ([Shard(0)] * 3, [Shard(0)] * 4 + others),
            # Every device saw some of the queries: the gradients of the values are sums over devices.
            (
                [Partial("sum"), Shard(1), Shard(1)],
                [Shard(1), everywhere, Shard(1), Shard(1), *others],
            ),
        ]
        if heads_divide(value):
            rules.append(([Shard(2)] * 3, [Shard(2)] * 4 + others))
        # A gradient that nobody wants is an empty tensor, which cannot be sharded.
        wanted = next(item for item in reversed(rest) if isinstance(item, (list, tuple)))
        return [
            (
                [place if is_wanted else everywhere for place, is_wanted in zip(outputs, wanted, strict=True)],
                inputs,
            )
            for outputs, inputs in rules
        ]

    register(operator.FORWARD.default)(forward)
    register(operator.BACKWARD.default)(backward)
    _registered = True
