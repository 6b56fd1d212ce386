"""Gradients of the operators' gradients, by `reference`: slow, but every derivative exists.

This module runs only if autograd records a gradient (`create_graph=True`, transforms of `torch.func`) or
differentiates it in forward mode. The reference is computed only if a recorded gradient is then differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._autograd import below_autograd, recording
from ._operators import wanted_of

# A direction for each gradient that depends on something, and nothing for the others.
_Directions = Sequence[Tensor | None]


class _Gradients(torch.autograd.Function):
    """An operator that is a gradient: `grad_output`, the tensors, and the rest of the schema."""

    @staticmethod
    def forward(ctx: Any, overload: Any, attend: Callable[..., Tensor], *arguments: Any) -> Any:
        # Tensors come first, those of levels included, any of which may be missing.
        split = next(at for at, given in enumerate(arguments) if not (given is None or isinstance(given, Tensor)))
        ctx.save_for_backward(*arguments[:split])
        ctx.attend, ctx.rest = attend, arguments[split:]
        ctx.set_materialize_grads(False)
        return below_autograd(overload, *arguments)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> Any:
        arguments = (*ctx.saved_tensors, *ctx.rest)
        wanted = wanted_of(arguments)
        chosen = [each if is_wanted else None for each, is_wanted in zip(directions, wanted, strict=True)]
        count, needed = 1 + len(wanted), ctx.needs_input_grad[2:]
        # The function of the tensors alone, of which there is one for each gradient.
        attend = partial(_with_rest, ctx.attend, arguments[count:])
        differentiate = _by_transforms if torch._C._are_functorch_transforms_active() else _by_tape
        found = differentiate(attend, arguments[:count], chosen, needed[:count])
        return (None, None, *found, *(None for _ in arguments[count:]))


def _with_rest(attend: Callable[..., Tensor], rest: tuple[Any, ...], *tensors: Tensor) -> Tensor:
    return attend(*tensors, *rest)


def _by_tape(
    attend: Callable[..., Tensor], given: Sequence[Tensor], directions: _Directions, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of `given`, which are `grad_output` and the tensors."""
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: if one tensor was computed from another, its share must not count for that one too.
        aliases = [each.view_as(each) if each.requires_grad else each.detach().requires_grad_() for each in given]
        upstream, *tensors = aliases
        output = attend(*tensors)
        sources = [(tensor, each) for tensor, each in zip(tensors, directions, strict=True) if each is not None]
        if not (output.requires_grad and sources):
            return [None] * len(given)
        first = torch.autograd.grad(
            output, [tensor for tensor, _ in sources], upstream, create_graph=True, allow_unused=True
        )
        pairs = [(each, along) for each, (_, along) in zip(first, sources, strict=True) if each is not None]
        targets = [alias for alias, is_needed in zip(aliases, needed, strict=True) if is_needed]
        if not (pairs and targets):
            return [None] * len(given)
        second = iter(
            torch.autograd.grad(
                [each for each, _ in pairs],
                targets,
                [along for _, along in pairs],
                create_graph=is_recorded,
                allow_unused=True,
            )
        )
    return [next(second) if is_needed else None for is_needed in needed]


def _by_transforms(
    attend: Callable[..., Tensor], given: Sequence[Tensor], directions: _Directions, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The same inside of transforms, where `requires_grad_` cannot be called on a tensor."""

    def first(upstream: Tensor, *tensors: Tensor) -> Any:
        return torch.func.vjp(attend, *tensors)[1](upstream)

    gradients, second = torch.func.vjp(first, *given)
    along = tuple(
        torch.zeros_like(each) if direction is None else direction
        for each, direction in zip(gradients, directions, strict=True)
    )
    return [each if is_needed else None for each, is_needed in zip(second(along), needed, strict=True)]


def _has_tangent(*arguments: Any) -> bool:
    return any(isinstance(each, Tensor) and forward_ad.unpack_dual(each).tangent is not None for each in arguments)


def _forward_mode(overload: Any, arguments: tuple[Any, ...]) -> Any:
    """Gradients and their tangents. A gradient is linear in `grad_output`, so the kernels compute both."""
    if _has_tangent(*arguments[1:]):
        raise NotImplementedError(
            f"forward mode through `{overload}` is possible for `grad_output` alone, but another tensor has a tangent. "
            "Call `msdeform.ms_deform_attn` or `ms_deform_attn_from_offsets` inside of forward mode, not before it"
        )
    primal, tangent = forward_ad.unpack_dual(arguments[0])
    gradients, tangents = (overload(each, *arguments[1:]) for each in (primal, tangent))
    return tuple(map(forward_ad.make_dual, gradients, tangents))


def differentiable_again(overload: Any, attend: Callable[..., Tensor]) -> Any:
    """The kernel for autograd of an operator that is a gradient. `attend` is what it is the gradient of, composed of
    PyTorch's operations, with the same arguments but `grad_output`.

    The kernel asks whether all of PyTorch must be bitwise reproducible and tells the kernel below in its last argument,
    because a native one cannot ask. A graph that is traced keeps the answer, and is traced again where it changes.
    """
    record, last = recording(_Gradients), len(overload._schema.arguments) - 1

    def kernel(*arguments: Any) -> Any:
        if torch.are_deterministic_algorithms_enabled():
            arguments = (*arguments[:last], True)
        if forward_ad._current_level >= 0 and _has_tangent(*arguments):
            return _forward_mode(overload, arguments)
        if torch.is_grad_enabled() and any(isinstance(item, Tensor) and item.requires_grad for item in arguments):
            return record(overload, attend, *arguments)
        return below_autograd(overload, *arguments)

    return kernel
