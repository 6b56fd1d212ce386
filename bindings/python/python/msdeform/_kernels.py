"""Kernels of all operators for PyTorch before 2.10. They compute where the tensors are, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._operators import Operator, check_axes, named

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


def _on_host(operator: Operator, *tensors: Tensor) -> tuple[Tensor, ...] | None:
    """Copies for the CPU's reference if a GPU has no kernel: float64, for gradient checks and comparisons."""
    if not (tensors[0].is_cuda and torch.float64 in [tensor.dtype for tensor in tensors]):
        return None
    check_devices(**named(operator, tensors[-len(operator.inputs) :]))
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "float64 is computed on the CPU, which a CUDA graph cannot contain; use float32 under capture"
        )
    return tuple(tensor.cpu() for tensor in tensors)


def compute_forward(operator: Operator, tensors: Sequence[Tensor], levels: list[int], options: Any) -> Tensor:
    """The output. On a GPU it is queued on the current stream."""
    check_axes(operator, tensors)
    on_host = _on_host(operator, *tensors)
    if on_host is not None:
        return compute_forward(operator, on_host, levels, options).to(tensors[0].device)
    output: Tensor = _native.kernel_forward(tuple(tensors), levels, options or None)
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
    check_axes(operator, tensors)
    on_host = _on_host(operator, grad_output, *tensors)
    if on_host is not None:
        found = compute_backward(operator, on_host[0], on_host[1:], levels, options, wanted, deterministic)
        return tuple(gradient.to(grad_output.device) for gradient in found)
    made = _native.kernel_backward(grad_output, tuple(tensors), levels, options or None, tuple(wanted), deterministic)
    each = zip(tensors, made, strict=True)
    return tuple(tensor.new_empty((0,)) if gradient is None else gradient for tensor, gradient in each)
