"""What computes a call of any operator where its tensors are: on the CPU or on a GPU.

Tensors are made contiguous where the native half needs it and stay referenced until it returns: it sees
nothing but addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class Rule(NamedTuple):
    """How samples follow from offsets, beside the shape of the references; in the native half's order."""

    anchors: bool
    offset_scale: float
    softmax: bool
    nearest: bool


_GIVEN = ("value", "sampling_locations", "attention_weights")
_FROM_OFFSETS = ("value", "reference_points", "sampling_offsets", "attention_logits")


def _names(rule: Rule | None) -> tuple[str, ...]:
    """The inputs of the operator, in its order."""
    return _GIVEN if rule is None else _FROM_OFFSETS


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


def _check(tensors: Sequence[Tensor], rule: Rule | None) -> None:
    names, first = _names(rule), tensors[0].device
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.device != first or tensor.layout is not torch.strided:
            check_dense(**dict(zip(names, tensors, strict=True)))
        if tensor.dtype not in CODES:
            raise TypeError(f"`{name}` is {tensor.dtype}; expected torch.float32, float16, bfloat16 or float64")
        if rule is not None and tensor.dim() < 4:
            raise ValueError(f"`{name}` has shape {list(tensor.shape)}, expected at least four axes")


def output_shape(tensors: Sequence[Tensor], rule: Rule | None) -> tuple[int, int, int]:
    """The shape of the output; refuses tensors with too few axes or too many."""
    value, positions = tensors[0], tensors[-2]
    if rule is not None:
        check_axes(*tensors)
    elif value.dim() != 4:
        raise ValueError(f"`value` has shape {list(value.shape)}, expected [batch, pixels, heads, channels]")
    elif positions.dim() < 2:
        raise ValueError(
            f"`sampling_locations` has shape {list(positions.shape)}, expected "
            "[batch, queries, heads, levels, points, 2]"
        )
    batch, _pixels, heads, channels = value.shape
    return batch, positions.shape[1], heads * channels


def check_axes(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> None:
    """Refuses tensors with too few axes or too many, for kernels that know shapes only."""
    torch._check(value.dim() == 4, lambda: f"`value` has {value.dim()} axes, expected [N, S, M, D]")
    torch._check(
        references.dim() == 4,
        lambda: f"`reference_points` has {references.dim()} axes, expected [N, Lq, references, 2 or 4]",
    )
    torch._check(
        offsets.dim() in (5, 6),
        lambda: f"`sampling_offsets` has {offsets.dim()} axes, expected [N, Lq, M, L, P, 2]",
    )
    torch._check(
        logits.dim() in (4, 5),
        lambda: f"`attention_logits` has {logits.dim()} axes, expected [N, Lq, M, L, P]",
    )


def gradients_for(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """The gradients, not yet computed; empty where they are not wanted."""
    return tuple(
        # Contiguous, whatever the strides of the input.
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


def _with_unit_channels(value: Tensor) -> Tensor:
    """Slices of larger tensors are read in place; only channels must follow each other."""
    return value if value.stride(3) == 1 or value.size(3) <= 1 else value.contiguous()


def _prepared(tensors: Sequence[Tensor], rule: Rule | None) -> tuple[Tensor, ...]:
    """The tensors as the native half reads them."""
    value, on_gpu = tensors[0], tensors[0].is_cuda
    value = _with_unit_channels(value) if on_gpu else value.contiguous()
    if rule is None:
        return value, tensors[1].contiguous(), tensors[2].contiguous()
    return (
        value,
        _with_free_axes(tensors[1], 2 if on_gpu else 3),
        _with_free_axes(tensors[2], 2),
        _with_free_axes(tensors[3], 2),
    )


def _inputs(tensors: Sequence[Tensor], rule: Rule | None) -> Any:
    """Address, dtype, shape and strides of each, and the rule. Strides that nothing reads are left out."""
    first = 0 if tensors[0].is_cuda else 1
    last = 1 if rule is None else len(tensors)
    operands = [
        (tensor.data_ptr(), CODES[tensor.dtype], tensor.shape, tensor.stride() if first <= at < last else ())
        for at, tensor in enumerate(tensors)
    ]
    return operands, rule


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
    """float64 has no kernels on a GPU: the reference computes it, for gradient checks and comparisons."""
    return tensors[0].is_cuda and torch.float64 in [tensor.dtype for tensor in tensors]


def _on_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "float64 is computed on the processor, which a CUDA graph cannot contain; use float32 under capture"
        )
    return tuple(tensor.cpu() for tensor in tensors)


def _workspace_beside(value: Tensor) -> tuple[list[Tensor], Callable[[int], int]]:
    """What allocates memory on the tensor's GPU, and where that is held. From PyTorch's allocator: freed in stream
    order, and part of a graph that is being captured."""
    held: list[Tensor] = []

    def allocate(size: int) -> int:
        held.append(value.new_empty((size,), dtype=torch.uint8))
        return int(held[-1].data_ptr())

    return held, allocate


def compute_forward(tensors: Sequence[Tensor], levels: list[int], rule: Rule | None) -> Tensor:
    """The output. On a GPU it is queued on the current stream."""
    _check(tensors, rule)
    if _is_computed_on_host(tensors):
        return compute_forward(_on_host(*tensors), levels, rule).to(tensors[0].device)
    shape = output_shape(tensors, rule)
    tensors = _prepared(tensors, rule)
    output = tensors[0].new_empty(shape)
    _native.forward(levels, _place(output), _inputs(tensors, rule), output.data_ptr())
    return output


def compute_backward(
    grad_output: Tensor,
    tensors: Sequence[Tensor],
    levels: list[int],
    rule: Rule | None,
    wanted: Sequence[bool],
    deterministic: bool,
) -> tuple[Tensor, ...]:
    """The gradients. On a GPU they are queued on the current stream; on the CPU they are always reproducible."""
    _check(tensors, rule)
    value = tensors[0]
    _check_grad_output(grad_output, value, output_shape(tensors, rule))
    if _is_computed_on_host(tensors):
        upstream, *inputs = _on_host(grad_output, *tensors)
        found = compute_backward(upstream, inputs, levels, rule, wanted, deterministic)
        return tuple(gradient.to(value.device) for gradient in found)
    if value.is_cuda:
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    else:
        grad_output = grad_output.contiguous()
    gradients, tensors = gradients_for(tensors, wanted), _prepared(tensors, rule)
    addresses = [gradient.data_ptr() if is_wanted else 0 for gradient, is_wanted in zip(gradients, wanted, strict=True)]
    # Held until the launch is queued.
    held, allocate = _workspace_beside(value) if value.is_cuda else ([], None)
    request = (grad_output.data_ptr(), grad_output.stride(), list(wanted), addresses, deterministic)
    _native.backward(levels, _place(value), _inputs(tensors, rule), request, allocate)
    del held
    return gradients


def forward(
    value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool = False
) -> Tensor:
    """The output of locations and weights."""
    return compute_forward((value, locations, weights), levels, None)


def backward(
    grad_output: Tensor,
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    levels: list[int],
    wanted: list[bool],
    deterministic: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of locations and weights."""
    return compute_backward(grad_output, (value, locations, weights), levels, None, wanted, deterministic)


# One kernel serves both dispatch keys: it computes where its tensors are.
forward_cpu = forward_cuda = forward
backward_cpu = backward_cuda = backward
