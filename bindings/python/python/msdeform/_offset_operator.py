"""The PyTorch operator `torch.ops.msdeform.ms_deform_attn_from_offsets` and its gradient.

It takes what a model's linear layers give. Nothing but that is kept for the gradient. Images and queries of references,
offsets and logits may have any strides: the latter two may be views of one projection, and references may be expanded.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _native, _offset_kernels, _schema, reference
from ._autograd import below_autograd, recording
from ._offset_kernels import Rule
from ._schema import LIBRARY
from ._second_derivative import differentiable_again
from ._vmap import fold, unfold

__all__ = ["BACKWARD", "FORWARD", "call", "is_one_pass", "register"]

FORWARD, BACKWARD = _schema.FROM_OFFSETS.default, _schema.FROM_OFFSETS_BACKWARD.default

# Where the operator is one pass. Elsewhere it is made of parts, which layers have themselves: `MSDeformAttn` and layers
# under `patch()` then use the plain operator.
_ONE_PASS = frozenset({"cpu", "cuda"})


def is_one_pass(device: torch.device) -> bool:
    """Whether a device has a kernel for the whole."""
    return device.type in _ONE_PASS


# Kernels. The dispatcher hands arguments over one by one, and leaves out defaults at the end ----------------------


def _forward(kernel: Any) -> Any:
    def forward(
        value: Tensor,
        references: Tensor,
        offsets: Tensor,
        logits: Tensor,
        levels: list[int],
        offset_scale: float,
        anchors: bool,
        softmax: bool,
        nearest: bool,
        deterministic: bool = False,
    ) -> Tensor:
        rule = Rule(anchors, offset_scale, softmax, nearest)
        result: Tensor = kernel((value, references, offsets, logits), levels, rule)
        return result

    return forward


def _backward(kernel: Any) -> Any:
    def backward(
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
        deterministic: bool = False,
    ) -> tuple[Tensor, ...]:
        rule = Rule(anchors, offset_scale, softmax, nearest)
        tensors = (value, references, offsets, logits)
        result: tuple[Tensor, ...] = kernel(grad_output, tensors, levels, rule, wanted, deterministic)
        return result

    return backward


def _forward_fake(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return _offset_kernels.output_for(value, references, offsets, logits)


def _backward_fake(grad_output: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _offset_kernels.gradients_for(rest[:4], _wanted(rest))


def _wanted(arguments: Sequence[Any]) -> Any:
    """The only list of booleans is the last list; what follows it may have been left out."""
    return next(item for item in reversed(arguments) if isinstance(item, (list, tuple)))


# Gradients and batches -------------------------------------------------------------------------------------------


def _below_autograd(arguments: tuple[Any, ...], wanted: tuple[bool, ...] | None = None) -> Tensor:
    """The output without its gradient. An ordinary call on a GPU leaves the dispatcher out, which takes longer than all
    the rest. What gradients will be `wanted` is compiled meanwhile."""
    levels, scale, anchors, softmax, nearest, *rest = arguments[4:]
    deterministic = bool(rest and rest[0])
    expected = None if wanted is None else (wanted, deterministic or torch.are_deterministic_algorithms_enabled())
    result: Tensor | None = _native.torch_forward_from_offsets(
        arguments[:4], levels, (anchors, scale, softmax, nearest), expected
    )
    return below_autograd(FORWARD, *arguments) if result is None else result


class _FromOffsets(torch.autograd.Function):
    """Forward and backward; keeps what it is given, and nothing else."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        ctx.save_for_backward(*arguments[:4])
        ctx.rule = arguments[4:]
        return _below_autograd(arguments, ctx.needs_input_grad[:4])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        # Once: a checkpoint gives them out no second time.
        wanted, tensors = list(ctx.needs_input_grad[:4]), ctx.saved_tensors
        levels, scale, anchors, softmax, nearest, *rest = ctx.rule
        deterministic = bool(rest and rest[0])
        found: Sequence[Tensor | None] | None = None
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling() or forward_ad._current_level >= 0):
            same_bits = deterministic or torch.are_deterministic_algorithms_enabled()
            rule = (anchors, scale, softmax, nearest)
            found = _native.torch_backward_from_offsets(grad_output, tensors, levels, rule, wanted, same_bits)
        if found is None:
            found = BACKWARD(grad_output, *tensors, *ctx.rule[:5], wanted, deterministic)
        kept = (gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True))
        return (*kept, *(None for _ in ctx.rule))


def _composed(*arguments: Any) -> Tensor:
    """The operator by the reference, for second derivatives and forward mode."""
    return reference.attend_from_offsets(*arguments[:9])


_record = recording(_FromOffsets)


def _differentiable(*arguments: Any) -> Any:
    if forward_ad._current_level >= 0:
        return _composed(*arguments)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments[:4]):
        return _record(*arguments)
    return _below_autograd(arguments)


def call(*arguments: Any) -> Tensor:
    """The operator with the arguments of the schema, past PyTorch's dispatcher where nothing waits there for it."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        result: Tensor = FORWARD(*arguments)
        return result
    result = _differentiable(*arguments)
    return result


def _mapped(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """One more batch axis is the batch itself, longer."""
    count, tensors = info.batch_size, 4 if isinstance(arguments[4], (list, tuple)) else 5
    folded = [fold(tensor, dim, count) for tensor, dim in zip(arguments[:tensors], in_dims[:tensors], strict=True)]
    rest = arguments[tensors:]
    if tensors == 4:
        return unfold(FORWARD(*folded, *rest), count), 0
    wanted = _wanted(rest)
    mapped = tuple(
        unfold(gradient, count) if is_wanted else gradient
        for gradient, is_wanted in zip(BACKWARD(*folded, *rest), wanted, strict=True)
    )
    return mapped, tuple(0 if is_wanted else None for is_wanted in wanted)


def register(native: Container[tuple[str, str]]) -> None:
    """Gives the operator its kernels, but those that are native."""

    def backward_cpu(*arguments: Any) -> tuple[Tensor, ...]:
        return _offset_kernels.backward_cpu(*arguments[:-1])

    for name, key, kernel in (
        ("ms_deform_attn_from_offsets", "CPU", _forward(_offset_kernels.forward_cpu)),
        ("ms_deform_attn_from_offsets", "CUDA", _forward(_offset_kernels.forward_cuda)),
        ("ms_deform_attn_from_offsets_backward", "CPU", _backward(backward_cpu)),
        ("ms_deform_attn_from_offsets_backward", "CUDA", _backward(_offset_kernels.backward_cuda)),
    ):
        if (key, name) not in native:
            LIBRARY.impl(name, kernel, key)
    for overload, fake in ((FORWARD, _forward_fake), (BACKWARD, _backward_fake)):
        torch.library.register_fake(overload, fake, lib=LIBRARY)
        if hasattr(torch.library, "register_vmap"):  # torch 2.5
            torch.library.register_vmap(overload, _mapped, lib=LIBRARY)
    LIBRARY.impl("ms_deform_attn_from_offsets", _differentiable, "Autograd")
    again = differentiable_again(BACKWARD, _composed)
    LIBRARY.impl("ms_deform_attn_from_offsets_backward", again, "Autograd")
