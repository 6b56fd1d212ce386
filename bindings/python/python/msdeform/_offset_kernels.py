"""What computes the operator from offsets on tensors of the processor or of a GPU; as `_kernels` for the other one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _native
from ._kernels import (
    CODES,
    check_dense,
    current_stream,
    on_host,
    value_strides,
    with_unit_channels,
    workspace_beside,
)

__all__ = ["Rule", "backward_cpu", "backward_cuda", "forward_cpu", "forward_cuda", "gradients_for", "output_for"]

_NAMES = ("value", "reference_points", "sampling_offsets", "attention_logits")
# What each of the four gradients is in the native half's number.
_BITS = (1, 8, 2, 4)


class Rule(NamedTuple):
    """How samples follow from offsets, beside the shape of the references; in the native half's order."""

    anchors: bool
    offset_scale: float
    softmax: bool
    nearest: bool


def _output_shape(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> tuple[int, int, int]:
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
    batch, _pixels, heads, channels = value.shape
    return batch, offsets.shape[1], heads * channels


def output_for(*tensors: Tensor) -> Tensor:
    """The output of value, references, offsets and logits, not yet computed."""
    return tensors[0].new_empty(_output_shape(*tensors))


def gradients_for(tensors: tuple[Tensor, ...], wanted: list[bool]) -> tuple[Tensor, ...]:
    """The gradients, not yet computed; empty where nobody wants them."""
    return tuple(
        # Contiguous, whatever the strides of the input.
        tensor.new_empty(tensor.shape if is_wanted else (0,))
        for tensor, is_wanted in zip(tensors, wanted, strict=True)
    )


def _with_free_axes(tensor: Tensor, axes: int) -> Tensor:
    """The tensor itself if only its first axes have strides of their own, else a contiguous copy."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape[axes:]), reversed(tensor.stride()[axes:]), strict=True):
        if size != 1 and stride != expected:
            return tensor.contiguous()
        expected *= size
    return tensor


def _check(*tensors: Tensor) -> None:
    check_dense(**dict(zip(_NAMES, tensors, strict=True)))
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if tensor.dtype not in CODES:
            raise TypeError(f"`{name}` is {tensor.dtype}; expected torch.float32, float16, bfloat16 or float64")
        if tensor.dim() < 4:
            raise ValueError(f"`{name}` has shape {list(tensor.shape)}, expected at least four axes")


def _check_grad_output(grad_output: Tensor, *tensors: Tensor) -> None:
    value, expected = tensors[0], _output_shape(*tensors)
    if tuple(grad_output.shape) != expected or grad_output.dtype != value.dtype:
        raise ValueError(
            f"`grad_output` has shape {list(grad_output.shape)} and is {grad_output.dtype}; expected "
            f"{list(expected)} of {value.dtype}"
        )


def _operands(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Any:
    """Address, format and shape of each, and the strides that are free."""
    tensors = (value, references, offsets, logits)
    operands = tuple((tensor.data_ptr(), CODES[tensor.dtype], tensor.shape) for tensor in tensors)
    return (*operands, (references.stride()[:3], offsets.stride()[:2], logits.stride()[:2]))


def _addresses(gradients: tuple[Tensor, ...], wanted: list[bool]) -> Any:
    return tuple(gradient.data_ptr() if is_wanted else 0 for gradient, is_wanted in zip(gradients, wanted, strict=True))


# The processor -------------------------------------------------------------------------------------------------


def _prepared_cpu(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    _check(value, references, offsets, logits)
    return (
        value.contiguous(),
        _with_free_axes(references, 3),
        _with_free_axes(offsets, 2),
        _with_free_axes(logits, 2),
    )


def forward_cpu(tensors: tuple[Tensor, ...], levels: list[int], rule: Rule) -> Tensor:
    """The output on the processor."""
    tensors = _prepared_cpu(*tensors)
    output = output_for(*tensors)
    _native.cpu_forward_from_offsets(levels, (torch.get_num_threads(), rule), _operands(*tensors), output.data_ptr())
    return output


def backward_cpu(
    grad_output: Tensor, tensors: tuple[Tensor, ...], levels: list[int], rule: Rule, wanted: list[bool]
) -> tuple[Tensor, ...]:
    """The gradients on the processor; always the same bits."""
    tensors = _prepared_cpu(*tensors)
    _check_grad_output(grad_output, *tensors)
    grad_output = grad_output.contiguous()
    gradients = gradients_for(tensors, wanted)
    _native.cpu_backward_from_offsets(
        levels,
        (torch.get_num_threads(), rule),
        _operands(*tensors),
        grad_output.data_ptr(),
        _addresses(gradients, wanted),
    )
    return gradients


# GPUs ----------------------------------------------------------------------------------------------------------


def _prepared_cuda(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    _check(value, references, offsets, logits)
    return (
        with_unit_channels(value),
        _with_free_axes(references, 2),
        _with_free_axes(offsets, 2),
        _with_free_axes(logits, 2),
    )


def forward_cuda(tensors: tuple[Tensor, ...], levels: list[int], rule: Rule) -> Tensor:
    """The output on a GPU, queued on the current stream."""
    value = tensors[0]
    if torch.float64 in (tensor.dtype for tensor in tensors):
        return forward_cpu(on_host(*tensors), levels, rule).to(value.device)
    tensors = _prepared_cuda(*tensors)
    output, index = output_for(*tensors), value.device.index
    place = (index, current_stream(index), value_strides(tensors[0]))
    _native.cuda_forward_from_offsets(levels, place, rule, _operands(*tensors), output.data_ptr())
    return output


def backward_cuda(
    grad_output: Tensor,
    tensors: tuple[Tensor, ...],
    levels: list[int],
    rule: Rule,
    wanted: list[bool],
    deterministic: bool,
) -> tuple[Tensor, ...]:
    """The gradients on a GPU, queued on the current stream."""
    value = tensors[0]
    if torch.float64 in (tensor.dtype for tensor in tensors):
        upstream, *inputs = on_host(grad_output, *tensors)
        gradients = backward_cpu(upstream, tuple(inputs), levels, rule, wanted)
        return tuple(gradient.to(value.device) for gradient in gradients)
    tensors = _prepared_cuda(*tensors)
    check_dense(grad_output=grad_output, value=value)
    _check_grad_output(grad_output, *tensors)
    gradients, index = gradients_for(tensors, wanted), value.device.index
    request = (
        index,
        sum(bit for bit, is_wanted in zip(_BITS, wanted, strict=True) if is_wanted),
        deterministic or torch.are_deterministic_algorithms_enabled(),
        value_strides(tensors[0]),
        grad_output.stride(),
    )
    # Held until the launch is queued.
    held, allocate = workspace_beside(value)
    _native.cuda_backward_from_offsets(
        levels,
        request,
        current_stream(index),
        rule,
        _operands(*tensors),
        (grad_output.data_ptr(), _addresses(gradients, wanted)),
        allocate,
    )
    del held
    return gradients
