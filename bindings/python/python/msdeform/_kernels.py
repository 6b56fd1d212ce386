"""Kernels of all operators for PyTorch before 2.10. They compute where the tensors are, on the CPU or on a GPU.

The native half sees addresses alone. Tensors are made contiguous where it needs that, and stay referenced until it
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._operators import Operator, check_axes, named, output_shape

CODES: dict[torch.dtype, int] = {
    dtype: _native.DTYPES.index(name)
    for dtype, name in (
        (torch.float32, "f32"),
        (torch.float16, "f16"),
        (torch.bfloat16, "bf16"),
        (torch.float64, "f64"),
    )
}


DTYPES = tuple(sorted(CODES, key=CODES.__getitem__))


def quick_empty() -> tuple[Any, Any, Any] | None:
    """Inductor's allocators for the CPU and the current GPU, and the function that tells which GPU that is."""
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
    """Refuses tensors of more than one device and sparse ones: an address of one device means nothing on another."""
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
        if tensor.dtype not in CODES:
            raise TypeError(f"`{each.name}` is {tensor.dtype}; expected torch.float32, float16, bfloat16 or float64")
    check_axes(operator, tensors)


def gradients_for(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """The gradients, not yet computed; empty where they are not wanted."""
    return tuple(
        # Contiguous, even if the input is not.
        tensor.new_empty(tensor.shape if is_wanted else (0,))
        for tensor, is_wanted in zip(tensors, wanted, strict=True)
    )


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


def _prepared(operator: Operator, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as the native half reads them. On a GPU slices of larger values are read in place."""
    on_gpu = tensors[0].is_cuda
    return [
        _with_free_axes(tensor, each.free_axes[on_gpu]) for each, tensor in zip(operator.inputs, tensors, strict=True)
    ]


def _operands(operator: Operator, tensors: Sequence[Tensor]) -> Any:
    """Address, dtype, shape and strides of each; no strides of a contiguous tensor, because nothing reads them."""
    on_gpu = tensors[0].is_cuda
    return [
        (tensor.data_ptr(), CODES[tensor.dtype], tensor.shape, tensor.stride() if each.free_axes[on_gpu] else ())
        for each, tensor in zip(operator.inputs, tensors, strict=True)
    ]


# The public `torch.cuda.current_stream(index).cuda_stream` takes a microsecond to say the same.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(index: int) -> int:
    """PyTorch's current stream on a GPU."""
    if _raw_stream is not None:
        return int(_raw_stream(index))
    return int(torch.cuda.current_stream(index).cuda_stream)


def _place(value: Tensor) -> tuple[int, int | None]:
    """The threads of the CPU, or the number of a GPU and its stream."""
    if not value.is_cuda:
        return torch.get_num_threads(), None
    return value.device.index, current_stream(value.device.index)


def _is_computed_on_host(tensors: Sequence[Tensor]) -> bool:
    """Whether a GPU has no kernel: the CPU's reference computes float64, for gradient checks and comparisons."""
    return tensors[0].is_cuda and torch.float64 in [tensor.dtype for tensor in tensors]


def _on_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "float64 is computed on the CPU, which a CUDA graph cannot contain; use float32 under capture"
        )
    return tuple(tensor.cpu() for tensor in tensors)


def _workspace_for(value: Tensor) -> tuple[list[Tensor], Callable[[int], int]]:
    """A list that holds memory of the tensor's GPU, and the function that allocates it. PyTorch's allocator frees it in
    stream order and makes it part of a graph that is being captured."""
    held: list[Tensor] = []

    def allocate(size: int) -> int:
        held.append(value.new_empty((size,), dtype=torch.uint8))
        return int(held[-1].data_ptr())

    return held, allocate


def compute_forward(operator: Operator, tensors: Sequence[Tensor], levels: list[int], options: Any) -> Tensor:
    """The output. On a GPU it is queued on the current stream."""
    _check(operator, tensors)
    if _is_computed_on_host(tensors):
        return compute_forward(operator, _on_host(*tensors), levels, options).to(tensors[0].device)
    tensors = _prepared(operator, tensors)
    output = tensors[0].new_empty(output_shape(tensors))
    inputs = _operands(operator, tensors), options or None
    _native.forward(levels, _place(output), inputs, output.data_ptr())
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
    """The gradients. On a GPU they are queued on the current stream; on the CPU they are always reproducible."""
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
    gradients, tensors = gradients_for(tensors, wanted), _prepared(operator, tensors)
    addresses = [gradient.data_ptr() if is_wanted else 0 for gradient, is_wanted in zip(gradients, wanted, strict=True)]
    # Held until the launch is queued.
    held, allocate = _workspace_for(value) if value.is_cuda else ([], None)
    request = (grad_output.data_ptr(), grad_output.stride(), list(wanted), addresses, deterministic)
    inputs = _operands(operator, tensors), options or None
    _native.backward(levels, _place(value), inputs, request, allocate)
    del held
    return gradients
