"""Gradients of the operator, and the calls that nothing but autograd wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _kernels, _native
from ._schema import BACKWARD, FORWARD
from ._vmap import is_old_batch

__all__ = [
    "Attend",
    "AttendReading",
    "below_autograd",
    "differentiable",
    "gradients",
    "recorded",
    "recording",
]

_forward, _forward_read = FORWARD.default, FORWARD.tensor_levels
_backward, _backward_read = BACKWARD.default, BACKWARD.tensor_levels


# Ordinary calls ----------------------------------------------------------------------------------------------

# Nothing in PyTorch wants to see a call if none of these returns something true: no mode, trace, profiler, transform.
# Autocast has had its turn before.
_WATCHERS: tuple[Any, ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._get_tracing_state,
    torch._C._autograd._profiler_enabled,
    torch._C._are_functorch_transforms_active,
)
# Ordinary calls then happen in the native half alone, where this version of PyTorch has what that takes (2.10).
_native.use_torch(
    Tensor,
    list(_WATCHERS),
    torch.get_num_threads,
    torch.uint8,
    _kernels.quick_empty(),
    list(_kernels.DTYPES),
)


def below_autograd(overload: Any, *arguments: Any) -> Any:
    """Calls an operator past the key of autograd. What a native kernel refuses arrives here as PyTorch's own error, and
    leaves as the exception that the kernel means, with the same words."""
    try:
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*arguments)
    except RuntimeError as error:
        refused: Exception | None = _native.refusal(str(error))
        if refused is None:
            raise
        raise refused from None


def _is_ordinary(value: Tensor, locations: Tensor, weights: Tensor) -> bool:
    """Whether the dispatcher would go straight to the kernel of the processor or the GPU."""
    return (
        type(value) is type(locations) is type(weights) is Tensor
        and (value.is_cpu or value.is_cuda)
        and not any(watcher() for watcher in _WATCHERS)
        and not (value.is_neg() or locations.is_neg() or weights.is_neg())
    )


def _below_autograd(
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    levels: list[int],
    deterministic: bool,
    wanted: tuple[bool, ...] | None = None,
) -> Tensor:
    """The output without its gradient. An ordinary call leaves the dispatcher out: a kernel in Python takes it about
    as long as all the rest of the call. What gradients will be `wanted` is compiled meanwhile."""
    expected = None if wanted is None else (wanted, deterministic or torch.are_deterministic_algorithms_enabled())
    result: Tensor | None = _native.torch_forward(value, locations, weights, levels, expected)
    if result is not None:
        return result
    if _is_ordinary(value, locations, weights):
        kernel = _kernels.forward_cuda if value.is_cuda else _kernels.forward_cpu
        return kernel(value, locations, weights, levels, deterministic)
    result = below_autograd(_forward, value, locations, weights, levels, deterministic)
    return result


def gradients(
    grad_output: Tensor,
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    levels: list[int],
    wanted: tuple[bool, bool, bool],
    deterministic: bool,
) -> Sequence[Tensor | None]:
    """The gradients, likewise. Autograd records them only if they may be differentiated again."""
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling() or forward_ad._current_level >= 0):
        same_bits = deterministic or torch.are_deterministic_algorithms_enabled()
        found: Sequence[Tensor | None] | None = _native.torch_backward(
            grad_output, value, locations, weights, levels, wanted, same_bits
        )
        if found is not None:
            return found
        if (
            _is_ordinary(value, locations, weights)
            and type(grad_output) is Tensor
            and not (grad_output.is_neg() or is_old_batch(grad_output))
        ):
            kernel = _kernels.backward_cuda if value.is_cuda else _kernels.backward_cpu
            return kernel(grad_output, value, locations, weights, levels, list(wanted), deterministic)
    result: tuple[Tensor, Tensor, Tensor] = _backward(
        grad_output, value, locations, weights, levels, list(wanted), deterministic
    )
    return result


# Gradients --------------------------------------------------------------------------------------------------


class Attend(torch.autograd.Function):
    """Forward and backward with the levels as numbers."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool = False
    ) -> Tensor:
        ctx.save_for_backward(value, locations, weights)
        ctx.levels, ctx.deterministic = levels, deterministic
        return _below_autograd(value, locations, weights, levels, deterministic, ctx.needs_input_grad[:3])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:3]
        value, locations, weights = ctx.saved_tensors
        found = gradients(grad_output, value, locations, weights, ctx.levels, wanted, ctx.deterministic)
        if not all(wanted):
            found = [gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True)]
        return (*found, None, None)


class AttendReading(torch.autograd.Function):
    """Forward and backward with the levels in tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        locations: Tensor,
        weights: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor | None,
        points: list[int] | None,
        deterministic: bool = False,
    ) -> Tensor:
        ctx.save_for_backward(value, locations, weights, spatial_shapes, level_start_index)
        ctx.points, ctx.deterministic = points, deterministic
        result: Tensor = below_autograd(
            _forward_read, value, locations, weights, spatial_shapes, level_start_index, points, deterministic
        )
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:3]
        found = _backward_read(grad_output, *ctx.saved_tensors, ctx.points, list(wanted), ctx.deterministic)
        value, locations, weights = (
            gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True)
        )
        return value, locations, weights, None, None, None, None


# As above.
_apply: Any = super(torch.autograd.Function, Attend).apply
# A tensor that a transform has let escape is replaced by what is in it.
_unwrapped: Any = torch._C._functorch.unwrap_if_dead


def recorded(value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool) -> Tensor:
    """The output, with its gradient if somebody may ask for it. Not for calls under transforms."""
    if torch.is_grad_enabled() and (value.requires_grad or locations.requires_grad or weights.requires_grad):
        tensors = _unwrapped(value), _unwrapped(locations), _unwrapped(weights)
        result: Tensor = _apply(*tensors, levels, deterministic)
        return result
    return _below_autograd(value, locations, weights, levels, deterministic)


# `torch.func` ------------------------------------------------------------------------------------------------


def _of_one_level(function: type[torch.autograd.Function]) -> Any:
    """The same for the transforms of `torch.func` (grad, vjp, jacrev). They call the operator's kernel once for each
    transform, the innermost first, so each records itself only and leaves those further out to record too."""
    from torch.autograd.function import _SingleLevelFunction

    def forward(ctx: Any, *arguments: Any) -> Any:
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return function.forward(ctx, *arguments)

    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    return type(f"{function.__name__}OfOneLevel", (_SingleLevelFunction,), members)


def recording(function: type[torch.autograd.Function]) -> Any:
    """Applies a function of autograd, under transforms or without."""
    of_one_level = _of_one_level(function)

    def apply(*arguments: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return function.apply(*arguments)
        from torch._functorch.autograd_function import enable_single_level_autograd_function

        with enable_single_level_autograd_function():
            return of_one_level.apply(*arguments)

    return apply


# Kernels -----------------------------------------------------------------------------------------------------


def differentiable(overload: Any, function: type[torch.autograd.Function], composed: Any) -> Any:
    """The kernel for autograd of the operator. Where forward mode is on, `composed` computes the same by PyTorch's
    operations, whether tensors have tangents or not: those of transforms further out cannot be seen here."""
    record = recording(function)

    def kernel(value: Tensor, locations: Tensor, weights: Tensor, *rest: Any) -> Any:
        if forward_ad._current_level >= 0:
            return composed(value, locations, weights, *rest)
        if torch.is_grad_enabled() and (value.requires_grad or locations.requires_grad or weights.requires_grad):
            return record(value, locations, weights, *rest)
        return below_autograd(overload, value, locations, weights, *rest)

    return kernel
