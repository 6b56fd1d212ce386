"""Times the first call before any kernel is compiled, and checks whether a change of sizes stops a training.

    python benches/cold_start.py [--device cuda|cpu] [--parts calls models sizes] [--pack FILE]  # 2 min, H200, 16 cores

Every figure is measured in a new process with its own cache folder and without a kernel pack: first with an empty
folder, then in another process with the folder that the first process filled. All processes start together, load
PyTorch and make their tensors, and then wait. A timed process runs alone, and the timed call is its first call of
msdeform. PyTorch's own first steps are not included: each process has used the GPU before, and a whole model has taken
two steps without the patch. `--pack` adds a third measurement of calls and models: with that kernel pack, without a
cache and without NVRTC.

`calls` are an encoder and a decoder of Deformable-DETR, with the plain and the fused operator. `models` is a training
step of the whole patched model. `sizes` is 150 training steps of an encoder and a decoder, whose images, batches and
numbers of queries never repeat. A row of `sizes` has the least number of milliseconds between the starts of two steps,
in which kernels can be compiled ahead. The step of a whole model takes 66 ms on an H200 (`docs/figures.md`). A step
that takes more than ten times the median counts as a stop.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PARTS = ("calls", "models", "sizes")
REPEATS = 2
STOP = 10.0
SHAPES = [(100, 167), (50, 84), (25, 42), (13, 21)]
HEADS, CHANNELS, POINTS, BATCH, QUERIES = 8, 32, 4, 2, 300
# A folder's processes come one after the other.
CACHES = ("empty", "filled")
# With a kernel pack and nothing else.
PACK = "pack"
# What issue and documents promise, in seconds, by what is done and the cache.
FORWARD_S, TRAINING_S, MODEL_S, FILLED_S = 0.3, 1.5, 2.5, 0.05


@dataclass(frozen=True)
class Scenario:
    """What one process does."""

    # A layer, `model` or `sizes`.
    what: str
    # `forward`, or `training`: forward and backward.
    work: str
    dtype: str
    operator: str = "locations"
    # Of `sizes`.
    pace_ms: float = 0.0
    steps: int = 150

    def target_s(self, cache: str) -> float | None:
        """What it may take on an H200 with 16 cores."""
        if cache == "filled":
            return FILLED_S
        if self.what == "model":
            return MODEL_S
        return FORWARD_S if self.work == "forward" else TRAINING_S


SCENARIOS = {
    "calls": [
        Scenario("encoder", "forward", "f16"),
        Scenario("encoder", "training", "f16"),
        Scenario("decoder", "training", "f16"),
        Scenario("encoder", "training", "f32"),
        Scenario("encoder", "training", "f16", "offsets"),
        Scenario("decoder", "training", "f16", "offsets"),
    ],
    "models": [Scenario("model", "training", "f16", "offsets"), Scenario("model", "training", "f32", "offsets")],
    "sizes": [
        Scenario("sizes", "training", "f16", pace_ms=50.0),
        Scenario("sizes", "training", "f32", pace_ms=50.0),
        Scenario("sizes", "training", "f16", "offsets", pace_ms=50.0),
        Scenario("sizes", "training", "f32", "offsets", pace_ms=50.0),
        # Without a pace, the steps leave almost no time for compiling in the background.
        Scenario("sizes", "training", "f32"),
    ],
}


# In the process that is measured ------------------------------------------------------------------------------------

Step = Callable[[], object]


def _synchronise(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _time_s(step: Step, device: str) -> float:
    start = time.perf_counter()
    step()
    _synchronise(device)
    return time.perf_counter() - start


def _layer_step(
    scenario: Scenario, device: str, shapes: Sequence[tuple[int, int]], batch: int, queries: int | None
) -> Step:
    """A call of an encoder, in which every pixel asks, or of a decoder with so many queries."""
    import msdeform
    import torch

    # Nothing of the other benches: they import what the first call would.
    dtype = {"f32": torch.float32, "f16": torch.float16}[scenario.dtype]
    pixels, levels = sum(height * width for height, width in shapes), len(shapes)
    rows = pixels if queries is None else queries

    def leaf(*sizes: int) -> torch.Tensor:
        return torch.rand(batch, *sizes, device=device).to(dtype).requires_grad_()

    value, places = leaf(pixels, HEADS, CHANNELS), leaf(rows, HEADS, levels, POINTS, 2)
    weights, references = leaf(rows, HEADS, levels, POINTS), torch.rand(batch, rows, levels, 2, device=device)
    upstream = torch.ones(batch, rows, HEADS * CHANNELS, device=device, dtype=dtype)

    def attend() -> torch.Tensor:
        if scenario.operator == "offsets":
            return msdeform.ms_deform_attn_from_offsets(value, shapes, references, places, weights)
        return msdeform.ms_deform_attn(value, shapes, None, places, weights)

    def infer() -> object:
        with torch.no_grad():
            return attend()

    def train() -> object:
        return torch.autograd.grad(attend(), (value, places, weights), upstream)

    return infer if scenario.work == "forward" else train


def _import_s() -> float:
    """What the first call of a process imports: `import msdeform` leaves alone what needs PyTorch."""
    start = time.perf_counter()
    importlib.import_module("msdeform.operator")
    return time.perf_counter() - start


def _first_and_later(step: Step, device: str) -> dict[str, Any]:
    imported = _import_s()
    first = imported + _time_s(step, device)
    later = statistics.median(_time_s(step, device) for _ in range(5))
    return {"import_s": round(imported, 4), "first_s": round(first, 4), "later_s": round(later, 6)}


def _prepare_layer(scenario: Scenario, device: str) -> Callable[[], dict[str, Any]]:
    batch, shapes = (BATCH, SHAPES) if device == "cuda" else (1, SHAPES[2:])
    queries = None if scenario.what == "encoder" else QUERIES
    step = _layer_step(scenario, device, shapes, batch, queries)
    return lambda: _first_and_later(step, device)


def _prepare_model(scenario: Scenario, device: str) -> Callable[[], dict[str, Any]]:
    import msdeform
    import passes
    import zoo

    model = zoo.MODELS["Deformable-DETR"]
    network, pixels = passes.prepare(model, device, getattr(model, device))
    train = passes.make_step(model, network, pixels, scenario.work, scenario.dtype)

    def step() -> object:
        network.zero_grad()
        return train(passes.LOSS_SCALES[0])

    # The first loads what PyTorch's own operations need, the second finds its memory.
    for _ in range(2):
        before = _time_s(step, device)

    def measure() -> dict[str, Any]:
        start = time.perf_counter()
        names = msdeform.patch(model.package)
        patch = time.perf_counter() - start
        if not names:
            raise RuntimeError(f"nothing is patched: {msdeform.patched(verbose=True)}")
        found = {"unpatched_s": round(before, 4), "patch_s": round(patch, 4), **_first_and_later(step, device)}
        return found | {"calls": passes.count_calls(step).all}

    return measure


def _random_layer(scenario: Scenario, device: str, generator: random.Random) -> tuple[Step, dict[str, Any]]:
    """An encoder and a decoder for images of one size, and what that is."""
    height, width = generator.randint(480, 800), generator.randint(480, 1333)
    batch, queries = generator.randint(1, 4), generator.randint(1, 1300)
    if device == "cpu":
        height, width, batch, queries = height // 8, width // 8, 1, queries // 8 + 1
    shapes = [(-(-height // stride), -(-width // stride)) for stride in (8, 16, 32, 64)]
    steps = [_layer_step(scenario, device, shapes, batch, asked) for asked in (None, queries)]
    size = {"height": height, "width": width, "batch": batch, "queries": queries}
    return lambda: [step() for step in steps], size


def _prepare_sizes(scenario: Scenario, device: str) -> Callable[[], dict[str, Any]]:
    generator = random.Random(20)

    def measure() -> dict[str, Any]:
        imported, times, sizes = _import_s(), [], []
        begin = time.perf_counter()
        for _ in range(scenario.steps):
            step, size = _random_layer(scenario, device, generator)
            _synchronise(device)
            times.append(_time_s(step, device))
            sizes.append(size)
            time.sleep(max(0.0, scenario.pace_ms / 1e3 - times[-1]))
        found = {"import_s": round(imported, 4), "seconds": round(time.perf_counter() - begin, 2)}
        times[0] += imported
        return found | summary_of(times, sizes)

    return measure


def summary_of(times: Sequence[float], sizes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Which of the steps after the first are stops, and what it took them."""
    median = statistics.median(times)
    stops = [at for at, took in enumerate(times) if at > 0 and not took <= STOP * median]
    return {
        "first_s": round(times[0], 4),
        "later_s": round(median, 6),
        "longest_later_s": round(max(times[1:]), 4),
        "stops": [{"step": at, "s": round(times[at], 4), **sizes[at]} for at in stops],
    }


PREPARE = {"encoder": _prepare_layer, "decoder": _prepare_layer, "model": _prepare_model, "sizes": _prepare_sizes}


def work(scenario: Scenario, device: str) -> None:
    """Prepares a measurement, reports that it is ready, and measures when it gets the signal."""
    import torch

    torch.manual_seed(1)
    measure = PREPARE[scenario.what](scenario, device)
    # The gradients of a GPU have a thread of their own, and products a library.
    leaf = torch.ones(64, 64, device=device, requires_grad=True)
    (leaf @ leaf).sum().backward()
    # Asked with a gradient of the output, PyTorch imports sympy the first time: two to three seconds that are not ours.
    torch.autograd.grad(leaf @ leaf, leaf, torch.ones_like(leaf))
    _synchronise(device)
    print(json.dumps({"is_ready": True}), flush=True)
    if sys.stdin.readline():
        print(json.dumps(measure()), flush=True)


# In the process that starts them ------------------------------------------------------------------------------------


class Worker:
    """A process that is ready, or will be."""

    def __init__(self, scenario: Scenario, device: str, folder: Path, pack: Path | None = None) -> None:
        settings = {"MSDEFORM_CACHE_DIR": str(folder), "MSDEFORM_KERNEL_PACK": "off", "MSDEFORM_TUNING": "off"}
        if pack is not None:
            settings |= {"MSDEFORM_CACHE_DIR": "", "MSDEFORM_KERNEL_PACK": str(pack), "MSDEFORM_NVRTC": os.devnull}
        words = [sys.executable, str(Path(__file__).resolve()), "--device", device]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*words, "--work", json.dumps(asdict(scenario))],
            env={**os.environ, **settings},
            stdin=pipe,
            stdout=pipe,
            text=True,
        )

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # Packages print other lines too.
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"the process ended with status {self.process.wait()} and without an answer")

    def wait(self) -> None:
        """Until it has nothing left to prepare."""
        self._answer()

    def measure(self) -> dict[str, Any]:
        """What it measures, and how long it took to end: a compiler may be at work."""
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)
        found = self._answer()
        start = time.perf_counter()
        self.process.communicate()
        if self.process.returncode != 0:
            raise RuntimeError(f"the process ended with status {self.process.returncode}")
        return {**found, "end_s": round(time.perf_counter() - start, 3)}

    def close(self) -> None:
        """Ends it if it was not asked."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def _run_part(device: str, part: str, root: Path, repeats: int, pack: Path | None) -> Iterator[dict[str, Any]]:
    caches = CACHES[:1] if part == "sizes" else CACHES if pack is None else (*CACHES, PACK)
    repeats = repeats if part == "calls" else 1
    turns = [
        (scenario, cache, root / f"{part}-{at}-{repeat}")
        for at, scenario in enumerate(SCENARIOS[part])
        for repeat in range(repeats)
        for cache in caches
    ]
    workers = [Worker(scenario, device, folder, pack if cache == PACK else None) for scenario, cache, folder in turns]
    try:
        for worker in workers:
            worker.wait()
        for worker, (scenario, cache, folder) in zip(workers, turns, strict=True):
            files = 0 if cache == PACK else sum(1 for path in folder.rglob("*") if path.is_file())
            row = {"device": device, "part": part, **asdict(scenario), "cache": cache, "files_before": files}
            yield row | {"target_s": scenario.target_s(cache)} | worker.measure()
    finally:
        for worker in workers:
            worker.close()


def measure(
    device: str = "cuda", parts: Sequence[str] = PARTS, repeats: int = REPEATS, pack: Path | None = None
) -> Iterator[dict[str, Any]]:
    """One row per process."""
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="msdeform-cold-") as folder:
            for row in _run_part(device, part, Path(folder), repeats, pack):
                print(summary(row), flush=True)
                yield row


def is_within_target(row: dict[str, Any]) -> bool:
    """Whether the first step is as fast as it should be, and no later one stops."""
    return row["first_s"] <= row["target_s"] and not row.get("stops")


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    said = f"{row['what']:8} {row['work']:8} {row['dtype']:4} {row['operator']:9} cache {row['cache']:6}"
    said += f"  first {row['first_s']:7.3f} s (target {row['target_s']:.2f}, imports {row['import_s']:.3f})"
    said += f"  later {row['later_s'] * 1e3:8.3f} ms"
    if "stops" in row:
        waits = ", ".join(f"{stop['step']}: {stop['s']:.2f} s" for stop in row["stops"])
        said += f"  pace {row['pace_ms']:.0f} ms  {len(row['stops'])} stops [{waits}]"
        said += f"  longest later {row['longest_later_s']:.3f} s"
    if "patch_s" in row:
        said += f"  unpatched {row['unpatched_s']:.3f} s  patch() {row['patch_s']:.3f} s  {row['calls']} calls"
    return said + ("" if is_within_target(row) else "  MISSED")


def main(given: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=REPEATS, help="fresh caches for each of the calls")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="kernels.pack of `cargo xtask pack`")
    parser.add_argument("--work", metavar="SCENARIO", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.work:
        work(Scenario(**json.loads(arguments.work)), arguments.device)
        return 0
    begin = time.monotonic()
    rows = list(measure(arguments.device, arguments.parts, arguments.repeats, arguments.pack))
    missed = sum(not is_within_target(row) for row in rows)
    print(f"{len(rows)} rows, {missed} missed their target; {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
