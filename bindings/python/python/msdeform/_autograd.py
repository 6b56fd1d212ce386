"""Gradients of the operators, and calls that bypass PyTorch's dispatcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _kernels, _native, reference
from ._operators import PLAIN, Form
from ._tracing import is_spelled_out

# The native half computes an ordinary call alone. A call is ordinary if its tensors are plain and no watcher returns a
# true value: no mode, trace, profiler or transform of PyTorch is active. Autocast is handled before.
_native.use_torch(
    SimpleNamespace(
        tensor=Tensor,
        watchers=[
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._get_tracing_state,
            torch._C._autograd._profiler_enabled,
            torch._C._are_functorch_transforms_active,
        ],
        threads=torch.get_num_threads,
        # The public function returns the same but takes a microsecond.
        stream=getattr(
            torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
        ),
        # The C function, without its Python wrapper.
        is_deterministic=getattr(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled),
        is_neg=Tensor.is_neg,
        new_empty=Tensor.new_empty,
        of_bytes={"dtype": torch.uint8},
        quick=_kernels.quick_empty(),
        dtypes=list(_kernels.DTYPES),
    )
)

_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled


class _Attend(torch.autograd.Function):
    """Any operator. Its arguments are the tensors, then a pair: the rest of the call, and the output if it is known.

    The rest of a call is its form, the levels that are no tensors, the options, and whether gradients must be bitwise
    reproducible. The function keeps the input tensors and nothing else.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        # The same as `ctx.save_for_backward`, without the call.
        tensors = ctx.to_save = arguments[:-1]
        ctx.call, output = arguments[-1]
        if output is None:
            form, levels, options, deterministic = ctx.call
            output = below_autograd(form.forward, *tensors, *levels, *options, deterministic)
        result: Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        form, levels, options, deterministic = ctx.call
        # Read once, because a checkpoint returns them only once.
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad
        if form.has_numbers and not (_is_grad_enabled() or _is_compiling() or forward_ad._current_level >= 0):
            found: Any = _native.torch_backward(grad_output, tensors, levels[0], options or None, wanted, deterministic)
            if found is not None:
                return found  # type: ignore[no-any-return]
        levels = tuple(each.numbers if isinstance(each, _native.Levels) else each for each in levels)
        flags = list(wanted[: len(form.operator.inputs)])
        # If the gradients may be differentiated again, the dispatcher records them.
        found = form.backward(grad_output, *tensors, *levels, *options, flags, deterministic)
        kept = [gradient if is_wanted else None for gradient, is_wanted in zip(found, flags, strict=True)]
        return (*kept, *[None] * (len(wanted) - len(kept)))


# `Function.apply` asks about transforms and about the defaults of arguments, in Python, before it calls this.
_apply: Any = super(torch.autograd.Function, _Attend).apply
# Unwraps a tensor that has escaped from its transform.
_unwrapped: Any = torch._C._functorch.unwrap_if_dead


def ordinary(
    form: Form, tensors: tuple[Any, ...], levels: Any, are_shapes: bool, options: tuple[Any, ...], deterministic: bool
) -> Tensor | None:
    """The output of an ordinary call, with its gradient; `None` if the call is not ordinary or has an error.

    `levels` has four numbers for each level. If `are_shapes`, it has pairs (height, width) of levels that follow each
    other.
    """
    found: Any = _native.torch_forward(tensors, levels, are_shapes, options or None, deterministic, _is_grad_enabled())
    if type(found) is not tuple:
        return found
    output, numbers = found
    result: Tensor = _apply(*tensors, ((form, (numbers,), options, deterministic), output))
    return result


def below_autograd(overload: Any, *arguments: Any) -> Any:
    """Calls an operator without the dispatch key of autograd.

    PyTorch turns an error of a native kernel into a RuntimeError. This function raises the kernel's own exception, with
    the same message.
    """
    try:
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*arguments)
    except RuntimeError as error:
        refused: Exception | None = _native.refusal(str(error))
        if refused is None:
            raise
        raise refused from None


def recorded(
    form: Form, tensors: tuple[Tensor, ...], levels: list[int], options: tuple[Any, ...], deterministic: bool
) -> Tensor:
    """The output, with its gradient if a tensor requires one. Not for calls under transforms."""
    output = ordinary(form, tensors, levels, False, options, deterministic)
    if output is not None:
        return output
    if not any(isinstance(number, torch.SymInt) for number in levels):
        # The dispatcher's error for anything but integers does not name the argument.
        levels = _native.level_numbers(levels)
    result: Tensor
    try:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            result = _apply(*map(_unwrapped, tensors), ((form, (levels,), options, deterministic), None))
        else:
            result = below_autograd(form.forward, *tensors, levels, *options, deterministic)
    except NotImplementedError:
        _native.check_tensors(tensors, bool(options))  # The dispatcher does not name the tensor without a kernel.
        raise
    return result


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


_record = recording(_Attend)


# Kernels -----------------------------------------------------------------------------------------------------


def differentiable(form: Form, composed: Any) -> Any:
    """The kernel for autograd of an operator. In forward mode `composed` computes the same by PyTorch's operations,
    whether tensors have tangents or not: those of transforms further out cannot be seen here."""

    def kernel(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            return composed(*arguments)
        tensors, levels, options, deterministic = form.call(arguments)
        if options and torch._C._len_torch_dispatch_stack() and is_spelled_out():
            return reference.attend_fused(*tensors, *levels, *options, by=PLAIN.numbers.forward)
        if form.has_numbers:
            output = ordinary(form, tensors, levels[0], False, options, deterministic)
            if output is not None:
                return output
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            split = 0 if form.has_numbers else 2  # The tensors of shapes and starts are kept with the others.
            call = form, levels[split:], options, deterministic
            return _record(*tensors, *levels[:split], (call, None))
        return below_autograd(form.forward, *arguments)

    return kernel
