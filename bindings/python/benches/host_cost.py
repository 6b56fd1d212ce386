"""What a call costs on the host, on a problem too small to take any time itself.

    python benches/host_cost.py

CPU time of the calling thread and not the wall clock, so that other processes do not count; the least of many rounds.
On a GPU the launch is queued and not waited for, and a round is short enough for the GPU's queue. Forward and backward
together are CPU time of the process: PyTorch runs the backward of a GPU on a thread of its own, and handing work to it
and back costs both threads time. The gradient alone is our share of that, called on the same thread; forward and
backward of a product of two tensors show PyTorch's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import msdeform
import torch
from msdeform import _autograd
from torch import Tensor

ROUNDS, CALLS = 100, 100
SHAPES = [(2, 2), (1, 2), (1, 1), (1, 1)]

Call = Callable[[], object]


def least_us(call: Call, settle: Callable[[], None], clock: Callable[[], float] = time.thread_time) -> float:
    """Microseconds per call in the best round."""
    best = float("inf")
    call()
    settle()
    for _ in range(ROUNDS):
        start = clock()
        for _ in range(CALLS):
            call()
        best = min(best, (clock() - start) / CALLS)
        settle()
    return round(best * 1e6, 2)


def attend(tensors: Sequence[Tensor]) -> Tensor:
    """One call, with the shapes as a list."""
    output: Tensor = msdeform.ms_deform_attn(tensors[0], SHAPES, None, tensors[1], tensors[2])
    return output


def measure_on(device: str) -> dict[str, Any]:
    """The costs on one device."""
    tensors = [
        torch.randn(1, 8, 2, 8, device=device),
        torch.rand(1, 1, 2, 4, 2, 2, device=device),
        torch.rand(1, 1, 2, 4, 2, device=device),
    ]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    ones = torch.ones(1, 1, 16, device=device)
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None

    def train() -> object:
        return torch.autograd.grad(attend(leaves), leaves, ones)

    levels = [
        number
        for (height, width), start in zip(SHAPES, (0, 4, 6, 7), strict=True)
        for number in (height, width, start, 2)
    ]
    factors = [tensor.clone().requires_grad_() for tensor in (ones, ones)]

    def differentiate() -> object:
        return _autograd.gradients(ones, tensors[0], tensors[1], tensors[2], levels, (True, True, True), False)

    def multiply() -> object:
        return torch.autograd.grad(factors[0] * factors[1], factors, ones)

    with torch.no_grad():
        inference_us = least_us(lambda: attend(tensors), settle)
        gradient_us = least_us(differentiate, settle)
    return {
        "device": device,
        "torch": torch.__version__,
        "levels": len(SHAPES),
        "inference_us": inference_us,
        "forward_with_gradients_us": least_us(lambda: attend(leaves), settle),
        "gradient_us": gradient_us,
        "forward_and_backward_us": least_us(train, settle, time.process_time),
        # For scale: the least that an operator of PyTorch's own costs.
        "add_us": least_us(lambda: torch.add(tensors[0], tensors[0]), settle),
        "mul_forward_and_backward_us": least_us(multiply, settle, time.process_time),
    }


def measure() -> list[dict[str, Any]]:
    """One row per kind of device that this machine has."""
    return [measure_on(device) for device in (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
