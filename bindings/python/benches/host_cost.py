"""Measures the host cost of a call, on a problem that is too small to take any time itself.

    python benches/host_cost.py

It measures CPU time of the calling thread and not wall-clock time, so other processes do not count. All calls take
turns, and the least of many rounds counts. On a GPU it queues launches without waiting for them, and a round fits into
the GPU's queue. Forward and backward together are CPU time of the process, because PyTorch runs the backward of a GPU
in a thread of its own, and both threads spend time on the exchange. The gradient alone is our share of that time,
called on the same thread.

For comparison it times PyTorch's own operations, recorded and with their gradients: products of the same number of
tensors, and `addcmul` of three tensors. A product of n tensors is n - 1 calls of `mul`. `ratios` are our times divided
by these.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import msdeform
import torch
from msdeform import _native
from torch import Tensor

ROUNDS, CALLS = 100, 50
SHAPES = [(2, 2), (1, 2), (1, 1), (1, 1)]
LEVELS = [2, 2, 0, 2, 1, 2, 4, 2, 1, 1, 6, 2, 1, 1, 7, 2]

Call = Callable[[], object]


def least_us(calls: dict[str, Call], settle: Callable[[], None]) -> dict[str, float]:
    """Microseconds per call in the best round, by name."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    settle()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            clock = time.process_time if name.endswith("backward_us") else time.thread_time
            start = clock()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (clock() - start) / CALLS)
            settle()
    return {name: round(seconds * 1e6, 2) for name, seconds in best.items()}


def attend(tensors: Sequence[Tensor]) -> Tensor:
    """One call, with the shapes as a list."""
    output: Tensor = msdeform.ms_deform_attn(tensors[0], SHAPES, None, tensors[1], tensors[2])
    return output


def attend_from_offsets(tensors: Sequence[Tensor]) -> Tensor:
    """One call from references, offsets and logits."""
    value, offsets, logits, references = tensors
    return msdeform.ms_deform_attn_from_offsets(value, SHAPES, references, offsets, logits)


def multiply(factors: Sequence[Tensor]) -> Tensor:
    """The product of all."""
    product, *others = factors
    for factor in others:
        product = product * factor
    return product


def measure_on(device: str) -> dict[str, Any]:
    """The costs on one device."""
    tensors = [
        torch.randn(1, 8, 2, 8, device=device),
        torch.rand(1, 1, 2, 4, 2, 2, device=device),
        torch.rand(1, 1, 2, 4, 2, device=device),
        torch.rand(1, 1, 4, 2, device=device),
    ]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    ones = torch.ones(1, 1, 16, device=device)
    factors = [ones.clone().requires_grad_() for _ in range(4)]

    def both_ways(call: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Call:
        return lambda: torch.autograd.grad(call(inputs), inputs, ones)

    def differentiate() -> object:
        return _native.torch_backward(ones, tuple(tensors[:3]), LEVELS, None, (True, True, True), False)

    def addcmul(inputs: Sequence[Tensor]) -> Tensor:
        return torch.addcmul(inputs[0], inputs[1], inputs[2])

    with torch.no_grad():
        within = {
            "inference_us": lambda: attend(tensors),
            "from_offsets_inference_us": lambda: attend_from_offsets(tensors),
            "gradient_us": differentiate,
            # For scale: the least that an operator of PyTorch's own costs.
            "add_us": lambda: torch.add(tensors[0], tensors[0]),
        }
        settle = torch.cuda.synchronize if device == "cuda" else lambda: None
        costs = least_us(within, settle)
    recorded: dict[str, Call] = {
        "forward_with_gradients_us": lambda: attend(leaves),
        "forward_and_backward_us": both_ways(attend, leaves[:3]),
        "from_offsets_forward_with_gradients_us": lambda: attend_from_offsets(leaves),
        "from_offsets_forward_and_backward_us": both_ways(attend_from_offsets, leaves),
        "addcmul_forward_with_gradients_us": lambda: addcmul(factors),
        "addcmul_forward_and_backward_us": both_ways(addcmul, factors[:3]),
        "mul_forward_and_backward_us": both_ways(multiply, factors[:2]),
    }
    for count in (3, 4):
        recorded[f"mul_of_{count}_forward_with_gradients_us"] = lambda inputs=factors[:count]: multiply(inputs)
        recorded[f"mul_of_{count}_forward_and_backward_us"] = both_ways(multiply, factors[:count])
    costs |= least_us(recorded, settle)
    return {"device": device, "torch": torch.__version__, "levels": len(SHAPES), **costs}


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """Ours to PyTorch's. Records do without: they follow from the rest."""
    return {
        f"{ours}{kind}_to_{theirs}": round(row[f"{ours}{kind}_us"] / row[f"{theirs}_{kind}_us"], 2)
        for kind in ("forward_with_gradients", "forward_and_backward")
        for ours, several in (("", "mul_of_3"), ("from_offsets_", "mul_of_4"))
        for theirs in (several, "addcmul")
    }


def measure() -> list[dict[str, Any]]:
    """One row per kind of device that this machine has."""
    return [measure_on(device) for device in (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps({**row, "ratios": ratios(row)}))
