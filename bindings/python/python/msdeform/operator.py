"""PyTorch's operators `torch.ops.msdeform.*`, with all registrations that PyTorch needs.

`_operators` is the table of the operators. Native kernels compute them in PyTorch 2.10 and newer, those of `_kernels`
in older versions. `_autograd`, `_second_derivative` and `_vmap` are their derivatives and batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _autograd, _kernels, _native, _vmap
from ._levels import numbers_of
from ._operators import LIBRARY, OPERATORS, Form, Operator, check_axes, named, output_shape, wanted_of
from ._second_derivative import differentiable_again

__all__ = ["call", "read_integers", "sampling_tensors"]


# Levels given as tensors -----------------------------------------------------------------------------------


def read_integers(name: str, tensor: Tensor) -> Any:
    """The numbers in a small tensor. Waits for the GPU if the tensor is on a GPU."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise TypeError(f"`{name}` is {tensor.dtype}; expected integers")
    while torch._C._functorch.is_gradtrackingtensor(tensor):  # A tensor of a transform must not be read itself.
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if tensor.numel() > 0 and (tensor.is_meta or tensor.untyped_storage().nbytes() == 0):
        raise ValueError(
            f"`{name}` has no numbers in it: it is on the device `meta`, or its storage was freed; pass a live tensor"
        )
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"`{name}` is on the GPU and a CUDA graph is being captured: reading it would have to wait for the "
            f"GPU, which a capture cannot. Pass `{name}` as a list or as a CPU tensor"
        )
    try:
        return tensor.tolist()
    except RuntimeError:
        # While a transform is active, torch 2.4 treats every tensor as one of that transform.
        if not torch._C._are_functorch_transforms_active():
            raise
        with torch._C._DisableFuncTorch():
            return tensor.tolist()


def _with_numbers(form: Form, arguments: tuple[Any, ...], first: int = 0) -> tuple[Any, ...]:
    """The arguments with the levels as numbers. Levels in tensors are read. The inputs begin at `first`."""
    if form.has_numbers:
        return arguments
    at = first + len(form.operator.inputs)
    end = at + form.level_arguments
    spatial_shapes, level_start_index, points = arguments[at:end]
    shapes = read_integers("spatial_shapes", spatial_shapes)
    starts = None if level_start_index is None else read_integers("level_start_index", level_start_index)
    levels = numbers_of(arguments[first].shape, shapes, starts, arguments[at - 2].shape, points)
    return (*arguments[:at], levels, *arguments[end:])


# Kernels ---------------------------------------------------------------------------------------------------


def _forward_kernel(form: Form) -> Any:
    def kernel(*arguments: Any) -> Any:
        if not form.has_numbers:
            return form.operator.numbers.forward(*_with_numbers(form, arguments))
        tensors, (levels,), options, _ = form.call(arguments)
        return _kernels.compute_forward(form.operator, tensors, levels, options)

    return kernel


def _backward_kernel(form: Form) -> Any:
    def kernel(grad_output: Tensor, *arguments: Any) -> Any:
        if not form.has_numbers:
            return form.operator.numbers.backward(*_with_numbers(form, (grad_output, *arguments), 1))
        tensors, (levels,), options, _ = form.call(arguments)
        deterministic = arguments[-1] is True
        return _kernels.compute_backward(
            form.operator, grad_output, tensors, levels, options, wanted_of(arguments), deterministic
        )

    return kernel


def _forward_fake(operator: Operator) -> Any:
    def fake(*arguments: Any) -> Tensor:
        tensors = arguments[: len(operator.inputs)]
        check_axes(operator, tensors)
        _kernels.check_devices(**named(operator, tensors))
        value: Tensor = tensors[0]
        return value.new_empty(output_shape(tensors))

    return fake


def _backward_fake(operator: Operator) -> Any:
    def fake(grad_output: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        each = zip(arguments[: len(operator.inputs)], wanted_of(arguments), strict=True)
        # Contiguous, even if the input is not.
        return tuple(tensor.new_empty(tensor.shape if is_wanted else (0,)) for tensor, is_wanted in each)

    return fake


def _composed(form: Form) -> Any:
    """The operator by the reference, for second derivatives and forward mode."""
    last = len(form.operator.inputs) + 1 + len(form.operator.options)

    def composed(*arguments: Any) -> Any:
        return form.operator.composed(*_with_numbers(form, arguments)[:last])

    return composed


# Calls from Python ---------------------------------------------------------------------------------------------


def call(
    operator: Operator, tensors: tuple[Tensor, ...], levels: list[int], options: tuple[Any, ...], deterministic: bool
) -> Tensor:
    """Calls the operator without the dispatch keys of autocast and autograd, whose decisions are made here."""
    form = operator.numbers
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        result: Tensor = form.forward(*tensors, levels, *options, deterministic)
        return result
    if torch.is_autocast_enabled("cuda" if tensors[0].is_cuda else "cpu"):
        tensors = autocast_tensors(tensors)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return _autograd.recorded(form, tensors, levels, options, deterministic)
    return _autograd.recorded(form, tensors, levels, options, deterministic)


# Autocast ---------------------------------------------------------------------------------------------------

_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def autocast_tensors(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Casts the values to the autocast dtype, as every attention and matrix product of PyTorch does. The other tensors
    stay as they are: half precision cannot hold a coordinate, and the kernels read floats together with half precision
    values."""
    value = tensors[0]
    if value.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return sampling_tensors((value.to(torch.get_autocast_dtype(value.device.type)), *tensors[1:]))
    return tensors


def _autocast(form: Form) -> Any:
    inputs = len(form.operator.inputs)

    def kernel(*arguments: Any) -> Tensor:
        tensors = autocast_tensors(arguments[:inputs])
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            result: Tensor = form.forward(*tensors, *arguments[inputs:])
        return result

    return kernel


def sampling_tensors(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Casts the inputs to dtypes that one kernel can read.

    Positions and weights get one dtype: their own, if a kernel reads it with the dtype of `value`, else float32 or
    float64. References get that dtype, or float32.
    """
    value, *references, positions, shares = tensors
    found = positions.dtype
    if not (found is shares.dtype and (found is torch.float32 or found is value.dtype)):
        if not (found.is_floating_point and shares.dtype.is_floating_point):
            return tuple(tensors)  # Integers: the kernels report which tensor is wrong.
        found = torch.float64 if torch.float64 in (found, shares.dtype) else torch.float32
        positions, shares = positions.to(found), shares.to(found)
    wide = torch.float64 if found is torch.float64 else torch.float32
    for at, each in enumerate(references):
        if each.dtype is not found and each.dtype is not wide:
            references[at] = each.to(wide)
    return (value, *references, positions, shares)


# Registration -----------------------------------------------------------------------------------------------


def _register() -> None:
    # Kernels that PyTorch calls without Python, from version 2.10 on, by dispatch key and name.
    native = _native.register_kernels()

    def implement(overload: Any, kernel: Any, *keys: str) -> None:
        name = overload._schema.name.removeprefix("msdeform::")
        if overload._schema.overload_name:
            name += "." + overload._schema.overload_name
        for key in keys:
            if (key, name) not in native:
                LIBRARY.impl(name, kernel, key)

    for operator in OPERATORS:
        for form in operator.forms:
            composed = _composed(form)
            implement(form.forward, _forward_kernel(form), "CPU", "CUDA")
            implement(form.backward, _backward_kernel(form), "CPU", "CUDA")
            implement(form.forward, _autograd.differentiable(form, composed), "Autograd")
            implement(form.backward, differentiable_again(form.backward, composed), "Autograd")
            implement(form.forward, _autocast(form), "AutocastCPU", "AutocastCUDA")
            implement(form.backward, _vmap.old_mapped_backward(form), "Batched")
            torch.library.register_fake(form.forward, _forward_fake(operator), lib=LIBRARY)
            torch.library.register_fake(form.backward, _backward_fake(operator), lib=LIBRARY)
            if hasattr(torch.library, "register_vmap"):  # torch 2.5
                torch.library.register_vmap(form.forward, _vmap.mapped_forward(form), lib=LIBRARY)
                torch.library.register_vmap(form.backward, _vmap.mapped_backward(form), lib=LIBRARY)


_register()
