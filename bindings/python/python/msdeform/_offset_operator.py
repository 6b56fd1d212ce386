"""The PyTorch operator `torch.ops.msdeform.ms_deform_attn_from_offsets` and its gradient.

It takes what a model's linear layers give. Nothing but that is kept for the gradient. Images and queries of references,
offsets and logits may have any strides: the latter two may be views of one projection, and references may be expanded.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _native, _parts, _schema
from ._autograd import below_autograd, differentiable_once, recording, refuse_tangents
from ._kernels import CODES, check_dense
from ._schema import LIBRARY
from ._vmap import fold, unfold

__all__ = ["BACKWARD", "FORWARD", "is_one_pass", "register"]

FORWARD, BACKWARD = _schema.FROM_OFFSETS.default, _schema.FROM_OFFSETS_BACKWARD.default

_NAMES = ("value", "reference_points", "sampling_offsets", "attention_logits")


# Where the operator is one pass. Elsewhere it is made of parts, which layers have themselves: `MSDeformAttn` and layers
# under `patch()` then use the plain operator. A device whose kernels have come is added here, and nowhere else.
_ONE_PASS = frozenset({"cpu"})


def is_one_pass(device: torch.device) -> bool:
    """Whether a device has a kernel for the whole."""
    return device.type in _ONE_PASS


# The processor -------------------------------------------------------------------------------------------------


def _with_free_axes(tensor: Tensor, axes: int) -> Tensor:
    """The tensor itself if only its first axes have strides of their own, else a contiguous copy."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape[axes:]), reversed(tensor.stride()[axes:]), strict=True):
        if size != 1 and stride != expected:
            return tensor.contiguous()
        expected *= size
    return tensor


def _inputs(*tensors: Tensor) -> Any:
    """Address, format and shape of each, and the strides that are free."""
    check_dense(**dict(zip(_NAMES, tensors, strict=True)))
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if tensor.dtype not in CODES:
            raise TypeError(f"`{name}` is {tensor.dtype}; expected torch.float32, float16, bfloat16 or float64")
        if tensor.dim() < 4:
            raise ValueError(f"`{name}` has shape {list(tensor.shape)}, expected at least four axes")
    _, references, offsets, logits = tensors
    operands = tuple((tensor.data_ptr(), CODES[tensor.dtype], tensor.shape) for tensor in tensors)
    return (*operands, (references.stride()[:3], offsets.stride()[:2], logits.stride()[:2]))


def _prepared(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    return (
        value.contiguous(),
        _with_free_axes(references, 3),
        _with_free_axes(offsets, 2),
        _with_free_axes(logits, 2),
    )


def _forward_cpu(
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    levels: list[int],
    offset_scale: float,
    anchors: bool,
    softmax: bool,
    nearest: bool,
) -> Tensor:
    tensors = _prepared(value, references, offsets, logits)
    inputs = _inputs(*tensors)
    output = _forward_fake(*tensors)
    place = (torch.get_num_threads(), (anchors, offset_scale, softmax, nearest))
    _native.cpu_forward_from_offsets(levels, place, inputs, output.data_ptr())
    return output


def _backward_cpu(
    grad_output: Tensor,
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    levels: list[int],
    offset_scale: float,
    anchors: bool,
    softmax: bool,
    nearest: bool,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    tensors = _prepared(value, references, offsets, logits)
    expected = _forward_fake(*tensors)
    if grad_output.shape != expected.shape or grad_output.dtype != value.dtype:
        raise ValueError(
            f"`grad_output` has shape {list(grad_output.shape)} and is {grad_output.dtype}; expected "
            f"{list(expected.shape)} of {value.dtype}"
        )
    grad_output = grad_output.contiguous()
    gradients = _backward_fake(grad_output, *tensors, wanted)
    addresses: Any = tuple(
        gradient.data_ptr() if is_wanted else 0 for gradient, is_wanted in zip(gradients, wanted, strict=True)
    )
    place = (torch.get_num_threads(), (anchors, offset_scale, softmax, nearest))
    _native.cpu_backward_from_offsets(levels, place, _inputs(*tensors), grad_output.data_ptr(), addresses)
    return gradients


# GPUs, in programs that were exported elsewhere: by parts, until there is a kernel for the whole ---------------------


def _parts_of(
    references: Tensor, offsets: Tensor, logits: Tensor, levels: list[int], softmax: bool, **rule: Any
) -> tuple[Tensor, Tensor]:
    """Locations and weights in float32 or better."""
    wide = torch.promote_types(offsets.dtype, torch.float32)
    shapes, points = list(zip(levels[::4], levels[1::4], strict=True)), levels[3::4]
    flat = (offsets.flatten(3, 4) if offsets.dim() == 6 else offsets).to(wide)
    weights = logits.to(wide).flatten(3)
    if softmax:
        # A row that is all -inf has no weights at all.
        weights = weights.softmax(-1).masked_fill((weights == -torch.inf).all(-1, keepdim=True), 0.0)
    return _parts.locations(references, flat, shapes, points, **rule), weights


def _forward_by_parts(
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    levels: list[int],
    offset_scale: float,
    anchors: bool,
    softmax: bool,
    nearest: bool,
) -> Tensor:
    rule: dict[str, Any] = {"offset_scale": offset_scale, "anchors": anchors, "nearest": nearest}
    locations, weights = _parts_of(references, offsets, logits, levels, softmax, **rule)
    result: Tensor = _schema.FORWARD.default(value, locations, weights, levels)
    return result


def _backward_by_parts(
    grad_output: Tensor,
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    levels: list[int],
    offset_scale: float,
    anchors: bool,
    softmax: bool,
    nearest: bool,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    rule: dict[str, Any] = {"offset_scale": offset_scale, "anchors": anchors, "nearest": nearest}
    locations, weights = _parts_of(references, offsets, logits, levels, softmax, **rule)
    places = (wanted[1] or wanted[2]) and not nearest
    grad_value, grad_locations, grad_weights = _schema.BACKWARD.default(
        grad_output, value, locations, weights, levels, [wanted[0], places, wanted[3]]
    )
    grad_references, grad_offsets, grad_logits = (
        torch.zeros(tensor.shape if is_wanted else (0,), dtype=tensor.dtype, device=tensor.device)
        for tensor, is_wanted in zip((references, offsets, logits), wanted[1:], strict=True)
    )
    if wanted[3]:
        if softmax:
            grad_weights = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
        grad_logits = grad_weights.view(logits.shape).to(logits.dtype)
    if places:
        shapes, points = list(zip(levels[::4], levels[1::4], strict=True)), levels[3::4]
        by_references, by_offsets = _parts.location_gradients(
            references, offsets, grad_locations, shapes, points, offset_scale=offset_scale, anchors=anchors
        )
        grad_references = by_references.to(references.dtype) if wanted[1] else grad_references
        grad_offsets = by_offsets.to(offsets.dtype) if wanted[2] else grad_offsets
    return grad_value, grad_references, grad_offsets, grad_logits


# Shapes without contents -----------------------------------------------------------------------------------------


def _forward_fake(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor, *_: Any) -> Tensor:
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
    return value.new_empty((batch, offsets.shape[1], heads * channels))


def _backward_fake(
    grad_output: Tensor, value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    tensors = (value, references, offsets, logits)
    return tuple(
        # Contiguous, whatever the strides of the input.
        tensor.new_empty(tensor.shape if is_wanted else (0,))
        for tensor, is_wanted in zip(tensors, rest[-1], strict=True)
    )


# Gradients and batches -------------------------------------------------------------------------------------------


class _FromOffsets(torch.autograd.Function):
    """Forward and backward; keeps what it is given, and nothing else."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        ctx.save_for_backward(*arguments[:4])
        ctx.rule = arguments[4:]
        result: Tensor = below_autograd(FORWARD, *arguments)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        wanted = list(ctx.needs_input_grad[:4])
        found = BACKWARD(grad_output, *ctx.saved_tensors, *ctx.rule, wanted)
        kept = (gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True))
        return (*kept, None, None, None, None, None)


_record = recording(_FromOffsets)


def _differentiable(*arguments: Any) -> Any:
    if forward_ad._current_level >= 0:
        refuse_tangents(*arguments[:4])
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments[:4]):
        return _record(*arguments)
    return below_autograd(FORWARD, *arguments)


def _mapped(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """One more batch axis is the batch itself, longer."""
    count, tensors = info.batch_size, 5 if len(arguments) == 10 else 4
    folded = [fold(tensor, dim, count) for tensor, dim in zip(arguments[:tensors], in_dims[:tensors], strict=True)]
    rest = arguments[tensors:]
    if tensors == 4:
        return unfold(FORWARD(*folded, *rest), count), 0
    mapped = tuple(
        unfold(gradient, count) if is_wanted else gradient
        for gradient, is_wanted in zip(BACKWARD(*folded, *rest), rest[-1], strict=True)
    )
    return mapped, tuple(0 if is_wanted else None for is_wanted in rest[-1])


def register(native: Container[str]) -> None:
    """Gives the operator its kernels, but those of the processor that are native."""
    if "ms_deform_attn_from_offsets" not in native:
        LIBRARY.impl("ms_deform_attn_from_offsets", _forward_cpu, "CPU")
    if "ms_deform_attn_from_offsets_backward" not in native:
        LIBRARY.impl("ms_deform_attn_from_offsets_backward", _backward_cpu, "CPU")
    LIBRARY.impl("ms_deform_attn_from_offsets", _forward_by_parts, "CUDA")
    LIBRARY.impl("ms_deform_attn_from_offsets_backward", _backward_by_parts, "CUDA")
    for overload, fake in ((FORWARD, _forward_fake), (BACKWARD, _backward_fake)):
        torch.library.register_fake(overload, fake, lib=LIBRARY)
        if hasattr(torch.library, "register_vmap"):  # torch 2.5
            torch.library.register_vmap(overload, _mapped, lib=LIBRARY)
    LIBRARY.impl("ms_deform_attn_from_offsets", _differentiable, "Autograd")
    LIBRARY.impl("ms_deform_attn_from_offsets_backward", differentiable_once(BACKWARD), "Autograd")
