"""What a call costs on the host: CPU time of the calling thread, on a problem too small to take any itself.

    python benches/host_cost.py

CPU time and not the wall clock, so that other processes do not count; the least of many rounds. On a GPU the launch
is queued and not waited for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msdeform
import torch

ROUNDS, CALLS = 40, 500


def least_us(call: Callable[[], object], settle: Callable[[], None]) -> float:
    """Microseconds of the calling thread per call, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.thread_time() - start) / CALLS)
        settle()
    return best * 1e6


def main() -> None:
    """Prints one line of JSON per device."""
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        shapes = [(2, 2), (1, 2), (1, 1), (1, 1)]
        value = torch.randn(1, 8, 2, 8, device=device)
        locations = torch.rand(1, 1, 2, 4, 2, 2, device=device)
        weights = torch.rand(1, 1, 2, 4, 2, device=device)
        leaves = [tensor.clone().requires_grad_() for tensor in (value, locations, weights)]
        ones = torch.ones(1, 1, 16, device=device)

        def settle(device: str = device) -> None:
            if device == "cuda":
                torch.cuda.synchronize()

        def infer() -> object:
            return msdeform.ms_deform_attn(value, shapes, None, locations, weights)  # noqa: B023

        def record() -> object:
            return msdeform.ms_deform_attn(leaves[0], shapes, None, leaves[1], leaves[2])  # noqa: B023

        def train() -> object:
            return torch.autograd.grad(record(), leaves, ones)  # noqa: B023

        with torch.no_grad():
            infer()
            settle()
            inference_us = least_us(infer, settle)
        train()
        settle()
        print(
            json.dumps(
                {
                    "device": device,
                    "torch": torch.__version__,
                    "levels": len(shapes),
                    "inference_us": round(inference_us, 2),
                    "forward_with_gradients_us": round(least_us(record, settle), 2),
                    "add_us": round(least_us(lambda: torch.add(value, value), settle), 2),  # noqa: B023
                }
            )
        )


main()
