"""What computes a call on tensors of the processor or of a GPU.

Tensors are made contiguous where the native half needs it and stay referenced until it returns: it sees
nothing but addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _native

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
    """How inductor's code allocates on the processor and on the current GPU, and what says which GPU that is."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = (
        getattr(guards, "_empty_strided_cpu", None),
        getattr(guards, "_empty_strided_cuda", None),
        getattr(torch._C, "_cuda_getDevice", None),
    )
    return None if None in found else found


_Operand = tuple[int, int, tuple[int, ...]]


def _operands(value: Tensor, locations: Tensor, weights: Tensor) -> tuple[_Operand, _Operand, _Operand]:
    """Address, format and shape of each."""
    try:
        return (
            (value.data_ptr(), CODES[value.dtype], value.shape),
            (locations.data_ptr(), CODES[locations.dtype], locations.shape),
            (weights.data_ptr(), CODES[weights.dtype], weights.shape),
        )
    except KeyError:
        tensors = {"value": value, "sampling_locations": locations, "attention_weights": weights}
        name, tensor = next(item for item in tensors.items() if item[1].dtype not in CODES)
        raise TypeError(f"`{name}` is {tensor.dtype}; expected torch.float32, float16, bfloat16 or float64") from None


def _output_for(value: Tensor, operands: tuple[_Operand, _Operand, _Operand]) -> Tensor:
    shape, locations_shape = operands[0][2], operands[1][2]
    if len(shape) != 4:
        raise ValueError(f"`value` has shape {list(shape)}, expected [batch, pixels, heads, channels]")
    if len(locations_shape) < 2:
        raise ValueError(
            f"`sampling_locations` has shape {list(locations_shape)}, expected "
            "[batch, queries, heads, levels, points, 2]"
        )
    return value.new_empty((shape[0], locations_shape[1], shape[2] * shape[3]))


def _gradients_for(
    value: Tensor, locations: Tensor, weights: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    def empty(tensor: Tensor, is_wanted: bool) -> Tensor:
        # Contiguous, whatever the strides of the input.
        return tensor.new_empty(tensor.shape if is_wanted else (0,))

    return empty(value, wanted[0]), empty(locations, wanted[1]), empty(weights, wanted[2])


def _check_grad_output(grad_output: Tensor, value: Tensor, locations: Tensor) -> None:
    batch, _, heads, channels = value.shape
    expected = (batch, locations.shape[1], heads * channels)
    if tuple(grad_output.shape) != expected or grad_output.dtype != value.dtype:
        raise ValueError(
            f"`grad_output` has shape {list(grad_output.shape)} and is {grad_output.dtype}; expected "
            f"{list(expected)} of {value.dtype}"
        )


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


# The processor -------------------------------------------------------------------------------------------


def forward_cpu(
    value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool = False
) -> Tensor:
    """The output on the processor."""
    check_dense(value=value, sampling_locations=locations, attention_weights=weights)
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    operands = _operands(value, locations, weights)
    output = _output_for(value, operands)
    _native.cpu_forward(levels, torch.get_num_threads(), *operands, output.data_ptr())
    return output


def backward_cpu(
    grad_output: Tensor,
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    levels: list[int],
    wanted: list[bool],
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients on the processor; always the same bits."""
    check_dense(grad_output=grad_output, value=value, sampling_locations=locations, attention_weights=weights)
    _check_grad_output(grad_output, value, locations)
    gradients = _gradients_for(value, locations, weights, wanted)
    grad_output, value = grad_output.contiguous(), value.contiguous()
    locations, weights = locations.contiguous(), weights.contiguous()
    _native.cpu_backward(
        levels,
        torch.get_num_threads(),
        *_operands(value, locations, weights),
        grad_output.data_ptr(),
        (gradients[0].data_ptr(), gradients[1].data_ptr(), gradients[2].data_ptr()),
    )
    return gradients


# GPUs ----------------------------------------------------------------------------------------------------

# The public `torch.cuda.current_stream(index).cuda_stream` takes a microsecond to say the same.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(index: int) -> int:
    """PyTorch's current stream on a GPU."""
    if _raw_stream is not None:
        return int(_raw_stream(index))
    return int(torch.cuda.current_stream(index).cuda_stream)


def with_unit_channels(value: Tensor) -> Tensor:
    """Slices of larger tensors are read in place; only channels must follow each other."""
    return value if value.stride(3) == 1 or value.size(3) <= 1 else value.contiguous()


def value_strides(value: Tensor) -> tuple[int, int, int]:
    """Strides of images, heads and pixels."""
    batch, pixel, head, _ = value.stride()
    return batch, head, pixel


def forward_cuda(
    value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool = False
) -> Tensor:
    """The output on a GPU, queued on the current stream."""
    check_dense(value=value, sampling_locations=locations, attention_weights=weights)
    if value.dtype is torch.float64 or locations.dtype is torch.float64:
        host = on_host(value, locations, weights)
        return forward_cpu(host[0], host[1], host[2], levels).to(value.device)
    if value.dim() == 4:
        value = with_unit_channels(value)
    locations, weights = locations.contiguous(), weights.contiguous()
    operands = _operands(value, locations, weights)
    output = _output_for(value, operands)
    index = value.device.index
    _native.cuda_forward(levels, index, current_stream(index), value_strides(value), *operands, output.data_ptr())
    return output


def on_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The reference path of float64: computed on the processor, for gradient checks and comparisons."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "float64 is computed on the processor, which a CUDA graph cannot contain; use float32 under capture"
        )
    return tuple(tensor.cpu() for tensor in tensors)


def workspace_beside(value: Tensor) -> tuple[list[Tensor], Callable[[int], int]]:
    """What allocates memory on the tensor's GPU, and where that is held. From PyTorch's allocator: freed in stream
    order, and part of a graph that is being captured."""
    held: list[Tensor] = []

    def allocate(size: int) -> int:
        held.append(value.new_empty((size,), dtype=torch.uint8))
        return int(held[-1].data_ptr())

    return held, allocate


def backward_cuda(
    grad_output: Tensor,
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    levels: list[int],
    wanted: list[bool],
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients on a GPU, queued on the current stream."""
    check_dense(grad_output=grad_output, value=value, sampling_locations=locations, attention_weights=weights)
    _check_grad_output(grad_output, value, locations)
    if value.dtype is torch.float64 or locations.dtype is torch.float64:
        host, device = on_host(grad_output, value, locations, weights), value.device
        grad_value, grad_locations, grad_weights = backward_cpu(host[0], host[1], host[2], host[3], levels, wanted)
        return grad_value.to(device), grad_locations.to(device), grad_weights.to(device)
    gradients = _gradients_for(value, locations, weights, wanted)
    value = with_unit_channels(value)
    locations, weights = locations.contiguous(), weights.contiguous()
    operands = _operands(value, locations, weights)
    index = value.device.index
    request = (
        index,
        wanted[0] + 2 * wanted[1] + 4 * wanted[2],
        deterministic or torch.are_deterministic_algorithms_enabled(),
        value_strides(value),
        grad_output.stride(),
    )
    # Held until the launch is queued.
    held, allocate = workspace_beside(value)
    _native.cuda_backward(
        levels,
        request,
        current_stream(index),
        *operands,
        (grad_output.data_ptr(), gradients[0].data_ptr(), gradients[1].data_ptr(), gradients[2].data_ptr()),
        allocate,
    )
    del held
    return gradients
