"""What native kernels save on the host: two processes, in one of which the kernels are those in Python, in turns.

    python benches/registered_cost.py

On a problem too small to take any time itself. CPU time of the calling thread, so that other processes count as little
as they can; medians over rounds, and the median of the ratios of neighbouring rounds. It also times calls that record
their gradient, as ratios to PyTorch's own operation with as many inputs (`addcmul`) in the same process and round.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROUNDS, CALLS = 25, 40
KINDS = ("python", "native")
RECORDED = ("recorded forward", "recorded forward and backward")


def calls() -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    import msdeform
    import msdeform.operator
    import torch

    shapes, levels = [(2, 2), (1, 2), (1, 1), (1, 1)], [2, 2, 0, 2, 1, 2, 4, 2, 1, 1, 6, 2, 1, 1, 7, 2]
    tensors = torch.randn(1, 8, 2, 8), torch.rand(1, 1, 2, 4, 2, 2), torch.rand(1, 1, 2, 4, 2)
    references, ones = torch.rand(1, 1, 4, 2), torch.ones(1, 1, 16)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    factors = [torch.rand(1, 1, 16, requires_grad=True) for _ in range(3)]
    operator = torch.ops.msdeform.ms_deform_attn.default

    def attend(value: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return msdeform.ms_deform_attn(value, shapes, None, locations, weights)

    def from_offsets() -> object:
        return msdeform.ms_deform_attn_from_offsets(tensors[0], shapes, references, tensors[1], tensors[2])

    compiled = torch.compile(attend, fullgraph=True)

    def in_inference(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return call()

        return run

    return {
        "operator": in_inference(lambda: operator(*tensors, levels)),
        "compiled": in_inference(lambda: compiled(*tensors)),
        "compiled forward and backward": lambda: torch.autograd.grad(compiled(*leaves), leaves, ones),
        "from offsets": in_inference(from_offsets),
        "recorded forward": lambda: attend(*leaves),
        "recorded forward and backward": lambda: torch.autograd.grad(attend(*leaves), leaves, ones),
        "addcmul forward": lambda: torch.addcmul(*factors),
        "addcmul forward and backward": lambda: torch.autograd.grad(torch.addcmul(*factors), factors, ones),
    }


def serve(kind: str) -> None:
    """Times what it is asked for, line by line."""
    if kind == "python":
        from msdeform import _native

        _native.register_kernels = lambda: []
    timed = calls()
    for call in timed.values():
        for _ in range(CALLS):
            call()
    print(json.dumps(list(timed)), flush=True)
    for line in sys.stdin:
        call = timed[line.strip()]
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        print((time.thread_time() - start) / CALLS * 1e6, flush=True)


def main() -> None:
    """Asks both in turns."""
    pipe = subprocess.PIPE
    workers = {
        kind: subprocess.Popen([sys.executable, __file__, kind], stdin=pipe, stdout=pipe, text=True) for kind in KINDS
    }
    # Both say what they have when they are ready.
    names = [json.loads(worker.stdout.readline()) for worker in workers.values() if worker.stdout].pop()
    times: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in KINDS for name in names}
    for number in range(ROUNDS):
        for name in names:
            for kind in KINDS if number % 2 else KINDS[::-1]:
                worker = workers[kind]
                assert worker.stdin and worker.stdout
                print(name, file=worker.stdin, flush=True)
                times[kind, name].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()

    def ratio(one: tuple[str, str], other: tuple[str, str]) -> float:
        pairs = zip(times[one], times[other], strict=True)
        return round(statistics.median(ours / theirs for ours, theirs in pairs), 2)

    for name in names:
        row: dict[str, object] = {
            "call": name,
            **{f"{kind}_us": round(statistics.median(times[kind, name]), 1) for kind in KINDS},
            "native_to_python": ratio(("native", name), ("python", name)),
        }
        if name in RECORDED:
            row["native_to_addcmul"] = ratio(("native", name), ("native", name.replace("recorded", "addcmul")))
        print(json.dumps(row))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
