"""What computes the operator from offsets; the kernels of `_kernels`, with its rule."""

from __future__ import annotations

from torch import Tensor

from ._kernels import Rule, compute_backward, compute_forward, gradients_for, output_shape

__all__ = ["Rule", "backward_cpu", "backward_cuda", "forward_cpu", "forward_cuda", "gradients_for", "output_for"]

_ANY_RULE = Rule(False, 0.5, True, False)


def output_for(*tensors: Tensor) -> Tensor:
    """The output of value, references, offsets and logits, not yet computed."""
    return tensors[0].new_empty(output_shape(tensors, _ANY_RULE))


forward_cpu = forward_cuda = compute_forward


def backward_cpu(
    grad_output: Tensor, tensors: tuple[Tensor, ...], levels: list[int], rule: Rule, wanted: list[bool]
) -> tuple[Tensor, ...]:
    """The gradients on the CPU; always reproducible."""
    return compute_backward(grad_output, tensors, levels, rule, wanted, True)


backward_cuda = compute_backward
