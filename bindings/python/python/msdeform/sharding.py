"""How the operators are shared out over several devices by DTensor: by images, by heads or by queries."""

from __future__ import annotations

from typing import Any

import torch

from . import _offset_operator, operator

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
            f"sharding rules need PyTorch 2.6 or newer with torch.distributed; this is {torch.__version__}"
        ) from error

    def heads_divide(value: Any) -> bool:
        # Heads are a part of the output's last axis: pieces must be whole heads, the same on every device.
        return all(value.shape[2] % size == 0 for size in value.mesh.shape)

    everywhere, images, queries, heads = Replicate(), Shard(0), Shard(1), Shard(2)
    # Of the plain operator and of the one from offsets, which has references beside the samples: every head has the
    # same, so that their gradients are sums where heads are shared out.
    plain = (
        (everywhere, (everywhere,) * 3, (everywhere,) * 3),
        (images, (images,) * 3, (images,) * 3),
        # Every device has all values and sees some of the queries: the gradients of the values are sums.
        (queries, (everywhere, queries, queries), (Partial("sum"), queries, queries)),
        (heads, (heads,) * 3, (heads,) * 3),
    )
    from_offsets = (
        (everywhere, (everywhere,) * 4, (everywhere,) * 4),
        (images, (images,) * 4, (images,) * 4),
        (queries, (everywhere, queries, queries, queries), (Partial("sum"), queries, queries, queries)),
        (heads, (heads, everywhere, heads, heads), (heads, Partial("sum"), heads, heads)),
    )

    def rules_of(table: Any, value: Any) -> Any:
        return [row for row in table if row[0] != heads or heads_divide(value)]

    def forward_of(table: Any) -> Any:
        def forward(value: Any, *rest: Any) -> list[Any]:
            others = [None] * (1 + len(rest) - len(table[0][1]))
            return [([output], [*inputs, *others]) for output, inputs, _ in rules_of(table, value)]

        return forward

    def backward_of(table: Any) -> Any:
        def backward(grad_output: Any, value: Any, *rest: Any) -> list[Any]:
            others = [None] * (1 + len(rest) - len(table[0][1]))
            # A gradient that nobody wants is an empty tensor, which cannot be sharded.
            wanted = next(item for item in reversed(rest) if isinstance(item, (list, tuple)))
            return [
                (
                    [place if is_wanted else everywhere for place, is_wanted in zip(gradients, wanted, strict=True)],
                    [output, *inputs, *others],
                )
                for output, inputs, gradients in rules_of(table, value)
            ]

        return backward

    for table, forward, backward in (
        (plain, operator.FORWARD.default, operator.BACKWARD.default),
        (from_offsets, _offset_operator.FORWARD, _offset_operator.BACKWARD),
    ):
        register(forward)(forward_of(table))
        register(backward)(backward_of(table))
    _registered = True
