"""Ordinary calls whose gradient is recorded: functions of autograd that are native on both sides.

What is kept beside the tensors is one object, `call`: levels, rule, whether bits must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _autograd, _native, _offset_operator

__all__: list[str] = []


def _gradients(grad_output: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool], call: Any) -> tuple[Any, ...]:
    """The gradients of a call that was ordinary when it was recorded, and nothing for what it was beside tensors."""
    value, locations, weights = tensors
    asked = (wanted[0], wanted[1], wanted[2])
    found = _autograd.gradients(grad_output, value, locations, weights, call.levels, asked, call.deterministic)
    return _those_wanted(found, asked)


def _gradients_from_offsets(
    grad_output: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool], call: Any
) -> tuple[Any, ...]:
    anchors, scale, softmax, nearest = call.rule
    asked = wanted[:4]
    rest = (call.levels, scale, anchors, softmax, nearest, list(asked), call.deterministic)
    return _those_wanted(_offset_operator.BACKWARD(grad_output, *tensors, *rest), asked)


def _those_wanted(found: Sequence[Tensor | None], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return *(gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True)), None


_is_compiling = torch.compiler.is_compiling


class _Attend(torch.autograd.Function):
    forward = staticmethod(_native.recorded_forward)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        # Gradients as a graph, or differentiated forward: the native half can be part of neither.
        if _is_compiling() or forward_ad._current_level >= 0:
            return _gradients(grad_output, ctx.saved_tensors, ctx.needs_input_grad, ctx.call)
        return _native.recorded_backward(ctx, grad_output)


class _FromOffsets(torch.autograd.Function):
    forward = staticmethod(_native.recorded_forward)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        if _is_compiling() or forward_ad._current_level >= 0:
            return _gradients_from_offsets(grad_output, ctx.saved_tensors, ctx.needs_input_grad, ctx.call)
        return _native.recorded_backward(ctx, grad_output)


def _apply(function: type[torch.autograd.Function]) -> Any:
    """`Function.apply` asks about transforms and about the defaults of arguments, in Python, before it calls this."""
    return super(torch.autograd.Function, function).apply


_native.use_recorder(
    (_apply(_Attend), _gradients),
    (_apply(_FromOffsets), _gradients_from_offsets),
    torch.is_grad_enabled,
    # Without a function in Python around it.
    getattr(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled),
)
