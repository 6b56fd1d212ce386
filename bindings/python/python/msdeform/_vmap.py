"""One more batch axis is the batch itself, longer: how `vmap`, vectorised jacobians and batches of gradients go."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._schema import BACKWARD, FORWARD

__all__ = ["fold", "is_old_batch", "mapped_backward", "mapped_forward", "old_mapped_backward", "unfold"]


def fold(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Puts the mapped axis into the batch; a tensor without it is repeated."""
    if dim is None:
        tensor = tensor.unsqueeze(0).expand(count, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    return tensor.reshape(count * tensor.shape[1], *tensor.shape[2:])


def unfold(tensor: Tensor, count: int) -> Tensor:
    """Takes it out of the batch again, to the front."""
    return tensor.view(count, tensor.shape[0] // max(count, 1), *tensor.shape[1:])


def _refuse_mapped_levels(in_dims: Any) -> None:
    if any(dim is not None for dim in torch.utils._pytree.tree_leaves(in_dims)):
        raise NotImplementedError(
            "vmap over `spatial_shapes` or `level_start_index` has no meaning: one call has one list of levels"
        )


def mapped_forward(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """The rule of both overloads of the operator."""
    tensors, rest = arguments[:3], arguments[3:]
    _refuse_mapped_levels(in_dims[3:])
    count = info.batch_size
    folded = [fold(tensor, dim, count) for tensor, dim in zip(tensors, in_dims[:3], strict=True)]
    overload = FORWARD.default if isinstance(rest[0], (list, tuple)) else FORWARD.tensor_levels
    return unfold(overload(*folded, *rest), count), 0


def mapped_backward(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """The rule of both overloads of the gradient."""
    _refuse_mapped_levels(in_dims[4:])
    return _map_gradients(info.batch_size, in_dims[:4], arguments)


def _map_gradients(count: int, in_dims: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    tensors, rest = arguments[:4], arguments[4:]
    folded = [fold(tensor, dim, count) for tensor, dim in zip(tensors, in_dims, strict=True)]
    overload = BACKWARD.default if isinstance(rest[0], (list, tuple)) else BACKWARD.tensor_levels
    gradients = overload(*folded, *rest)
    # `wanted` is the last list; a gradient that nobody wants is an empty tensor, the same for all.
    wanted = next(item for item in reversed(rest) if isinstance(item, (list, tuple)))
    mapped = tuple(
        unfold(gradient, count) if is_wanted else gradient
        for gradient, is_wanted in zip(gradients, wanted, strict=True)
    )
    return mapped, tuple(0 if is_wanted else None for is_wanted in wanted)


# `torch.autograd.grad(is_grads_batched=True)` and `torch.autograd.functional.jacobian(vectorize=True)` have a `vmap` of
# their own, older than `torch.vmap`, with another kind of tensor.
is_old_batch: Any = torch._C._functorch.is_legacy_batchedtensor


def _level_of(batches: list[Any]) -> int:
    """The level of such a `vmap` that made them batches."""
    level = int(torch._C._vmapmode_increment_nesting()) - 1
    torch._C._vmapmode_decrement_nesting()
    # Threads of autograd, which compute gradients of GPUs, do not know it: it is the one without which none is a batch.
    guesses: list[int] = [level, *range(1, 8)]
    for guess in guesses:
        if not any(is_old_batch(torch._remove_batch_dim(batch, guess, 1, 0)) for batch in batches):
            return guess
    if level == 0:
        raise RuntimeError(
            "msdeform: batches of gradients inside of others (is_grads_batched=True, vectorize=True) are not possible "
            "on a GPU; use torch.func.vmap, jacrev or jacfwd"
        )
    return level


def old_mapped_backward(*arguments: Any) -> Any:
    """The gradient of tensors of which some are such batches."""
    tensors, rest = arguments[:4], arguments[4:]
    dims = [0 if is_old_batch(tensor) else None for tensor in tensors]
    level = _level_of([tensor for tensor, dim in zip(tensors, dims, strict=True) if dim == 0])
    whole = [
        torch._remove_batch_dim(tensor, level, 1, 0) if dim == 0 else tensor
        for tensor, dim in zip(tensors, dims, strict=True)
    ]
    count = next(tensor.shape[0] for tensor, dim in zip(whole, dims, strict=True) if dim == 0)
    gradients, out_dims = _map_gradients(count, dims, (*whole, *rest))
    return tuple(
        gradient if dim is None else torch._add_batch_dim(gradient, dim, level)
        for gradient, dim in zip(gradients, out_dims, strict=True)
    )
