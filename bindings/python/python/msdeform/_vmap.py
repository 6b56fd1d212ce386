"""Rules for `vmap`, vectorised jacobians and batches of gradients: the mapped axis becomes a part of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._operators import Form, wanted_of


def _fold(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Merges the mapped axis into the batch. A tensor without that axis is repeated."""
    if dim is None:
        tensor = tensor.unsqueeze(0).expand(count, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    return tensor.reshape(count * tensor.shape[1], *tensor.shape[2:])


def _unfold(tensor: Tensor, count: int) -> Tensor:
    """Splits the mapped axis from the batch and moves it to the front."""
    return tensor.view(count, tensor.shape[0] // max(count, 1), *tensor.shape[1:])


def _refuse_mapped_levels(in_dims: Any) -> None:
    if any(dim is not None for dim in torch.utils._pytree.tree_leaves(in_dims)):
        raise NotImplementedError(
            "vmap over `spatial_shapes` or `level_start_index` is not possible: one call has one list of levels"
        )


def mapped_forward(form: Form) -> Any:
    """The rule of the forward overload."""
    inputs = len(form.operator.inputs)

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        _refuse_mapped_levels(in_dims[inputs:])
        folded = _fold_all(arguments[:inputs], in_dims, info.batch_size)
        return _unfold(form.forward(*folded, *arguments[inputs:]), info.batch_size), 0

    return rule


def mapped_backward(form: Form) -> Any:
    """The rule of the backward overload."""
    tensors = 1 + len(form.operator.inputs)

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        _refuse_mapped_levels(in_dims[tensors:])
        return _map_gradients(form, info.batch_size, in_dims[:tensors], arguments)

    return rule


def _fold_all(tensors: Sequence[Tensor], dims: Sequence[int | None], count: int) -> list[Tensor]:
    return [_fold(tensor, dim, count) for tensor, dim in zip(tensors, dims, strict=False)]


def _map_gradients(form: Form, count: int, dims: Sequence[int | None], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    folded = _fold_all(arguments[: len(dims)], dims, count)
    gradients = form.backward(*folded, *arguments[len(dims) :])
    # A gradient that is not wanted is one empty tensor without a mapped axis.
    wanted = wanted_of(arguments)
    mapped = tuple(
        _unfold(gradient, count) if is_wanted else gradient
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
    # The threads of autograd, which compute gradients of GPUs, do not know the level. It is the one without which no
    # tensor is a batch.
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


def old_mapped_backward(form: Form) -> Any:
    """The gradient of tensors of which some are such batches."""
    count = 1 + len(form.operator.inputs)

    def kernel(*arguments: Any) -> Any:
        tensors, rest = arguments[:count], arguments[count:]
        dims = [0 if is_old_batch(tensor) else None for tensor in tensors]
        level = _level_of([tensor for tensor, dim in zip(tensors, dims, strict=True) if dim == 0])
        whole = [
            torch._remove_batch_dim(tensor, level, 1, 0) if dim == 0 else tensor
            for tensor, dim in zip(tensors, dims, strict=True)
        ]
        length = next(tensor.shape[0] for tensor, dim in zip(whole, dims, strict=True) if dim == 0)
        gradients, out_dims = _map_gradients(form, length, dims, (*whole, *rest))
        return tuple(
            gradient if dim is None else torch._add_batch_dim(gradient, dim, level)
            for gradient, dim in zip(gradients, out_dims, strict=True)
        )

    return kernel
