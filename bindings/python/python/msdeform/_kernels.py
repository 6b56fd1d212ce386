"""Kernels of all operators for PyTorch before 2.10. They compute where the tensors are, on the CPU or on a GPU.

The checks are those of the native kernels. Tensors are made contiguous if the native half needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._operators import Operator, check_axes, named, output_shape

# In the order of the native half's table.
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def quick_empty() -> tuple[Any, Any, Any] | None:
    """Inductor's allocators for the CPU and the current GPU, and the function that returns the current GPU."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = (
        getattr(guards, "_empty_strided_cpu", None),
        getattr(guards, "_empty_strided_cuda", None),
        getattr(torch._C, "_cuda_getDevice", None),
    )
    return None if None in found else found


def check_devices(**tensors: Tensor) -> None:
    """Refuses tensors of more than one device, by name."""
    places = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(places.values())) > 1:
        found = ", ".join(f"`{name}` on {device}" for name, device in places.items())
        raise ValueError(f"all tensors must be on one device, found {found}; move them with `.to(device)`")


def check_dense(**tensors: Tensor) -> None:
    """Refuses sparse tensors and tensors on more than one device, because kernels use their addresses."""
    first = next(iter(tensors.values())).device
    for name, tensor in tensors.items():
        if tensor.device != first:
            check_devices(**tensors)
        if tensor.layout is not torch.strided:
            raise TypeError(f"`{name}` is {tensor.layout}; expected a dense tensor, as `.to_dense()` makes one")


def _check(operator: Operator, tensors: Sequence[Tensor]) -> None:
    first = tensors[0].device
    for each, tensor in zip(operator.inputs, tensors, strict=True):
        if tensor.device != first or tensor.layout is not torch.strided:
            check_dense(**named(operator, tensors))
        if tensor.dtype not in DTYPES:
            raise TypeError(f"`{each.name}` is {tensor.dtype}; expected torch.float32, float16, bfloat16 or float64")
    check_axes(operator, tensors)


def _check_grad_output(grad_output: Tensor, value: Tensor, expected: tuple[int, ...]) -> None:
    check_dense(grad_output=grad_output, value=value)
    if tuple(grad_output.shape) != expected or grad_output.dtype != value.dtype:
        raise ValueError(
            f"`grad_output` has shape {list(grad_output.shape)} and is {grad_output.dtype}; expected "
            f"{list(expected)} of {value.dtype}"
        )


def _with_free_axes(tensor: Tensor, axes: int) -> Tensor:
    """The tensor itself if only its first axes have strides of their own, else a contiguous copy."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape[axes:]), reversed(tensor.stride()[axes:]), strict=True):
        if size != 1 and stride != expected:
            return tensor.contiguous()
        expected *= size
    return tensor


def _prepared(operator: Operator, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors as the native half reads them. On a GPU slices of larger values are read in place."""
    on_gpu = tensors[0].is_cuda
    each = zip(operator.inputs, tensors, strict=True)
    return tuple(_with_free_axes(tensor, known.free_axes[on_gpu]) for known, tensor in each)


def _is_computed_on_host(tensors: Sequence[Tensor]) -> bool:
    """Whether a GPU has no kernel: the CPU's reference computes float64, for gradient checks and comparisons."""
    return tensors[0].is_cuda and torch.float64 in [tensor.dtype for tensor in tensors]


def _on_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "float64 is computed on the CPU, which a CUDA graph cannot contain; use float32 under capture"
        )
    return tuple(tensor.cpu() for tensor in tensors)


def compute_forward(operator: Operator, tensors: Sequence[Tensor], levels: list[int], options: Any) -> Tensor:
    """The output. On a GPU it is queued on the current stream."""
    _check(operator, tensors)
    if _is_computed_on_host(tensors):
        return compute_forward(operator, _on_host(*tensors), levels, options).to(tensors[0].device)
    output: Tensor = _native.kernel_forward(_prepared(operator, tensors), levels, options or None)
    return output


def compute_backward(
    operator: Operator,
    grad_output: Tensor,
    tensors: Sequence[Tensor],
    levels: list[int],
    options: Any,
    wanted: Sequence[bool],
    deterministic: bool,
) -> tuple[Tensor, ...]:
    """The gradients; those that are not wanted are empty. On a GPU they are queued on the current stream. On the CPU
    they are always bitwise reproducible."""
    _check(operator, tensors)
    value = tensors[0]
    _check_grad_output(grad_output, value, output_shape(tensors))
    if _is_computed_on_host(tensors):
        upstream, *on_host = _on_host(grad_output, *tensors)
        found = compute_backward(operator, upstream, on_host, levels, options, wanted, deterministic)
        return tuple(gradient.to(value.device) for gradient in found)
    if value.is_cuda:
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    else:
        grad_output = grad_output.contiguous()
    tensors = _prepared(operator, tensors)
    made = _native.kernel_backward(grad_output, tensors, levels, options or None, tuple(wanted), deterministic)
    each = zip(tensors, made, strict=True)
    return tuple(tensor.new_empty((0,)) if gradient is None else gradient for tensor, gradient in each)
