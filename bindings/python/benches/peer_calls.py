"""msdeform and its peers on the same inputs in one process: errors, memory, times. `peers.py` starts this as a worker.

A worker measures cases one after the other. For each, it draws the inputs, computes the exact results, calls every peer
once on fresh memory that was filled with NaN, and then times all peers in turns. It prints a line before each step, so
that `peers.py` knows which peer is at work when a worker hangs.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peer_rows import COLUMNS, MESSAGE, OURS, Case, Row, cell
from torch import Tensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# As METHODOLOGY.md has it: calls with fewer samples are also timed as a graph of so many calls.
GRAPH_SAMPLES, GRAPH_CALLS = 500_000, 20
# Nearer to the border of a cell, in pixels, the gradient of a location may be that of either side.
BORDER = 0.01

Tensors = tuple[Tensor, ...]
# Value, locations and weights in, the output out.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Workload:
    """Sizes of a call, as `workloads/*.toml` has them."""

    name: str
    batch: int
    heads: int
    channels: int
    levels: tuple[tuple[int, int], ...]
    points: int
    queries: int
    reference_points: Any

    @classmethod
    def load(cls, folder: Path, name: str, device: str) -> Workload:
        """Reads one; on a CPU with the batch for CPUs."""
        import tomllib

        found = tomllib.loads((folder / f"{name}.toml").read_text())
        levels = tuple((height, width) for height, width in found["levels"])
        pixels = sum(height * width for height, width in levels)
        return cls(
            name=name,
            batch=found.get("batch_cpu", found["batch"]) if device == "cpu" else found["batch"],
            heads=found["heads"],
            channels=found["channels"],
            levels=levels,
            points=found["points"],
            queries=pixels if found["queries"] == "pixels" else found["queries"],
            reference_points=found["reference_points"],
        )

    @property
    def samples(self) -> int:
        """Of all images, queries and heads."""
        return self.batch * self.queries * self.heads * len(self.levels) * self.points


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case."""

    workload: Workload
    value: Tensor
    locations: Tensor
    weights: Tensor
    grad_output: Tensor

    @property
    def differentiable(self) -> Tensors:
        """What a backward gives gradients of."""
        return self.value, self.locations, self.weights


def draw(workload: Workload, kind: str, dtype: str, device: str) -> Inputs:
    """Inputs with the recipe of METHODOLOGY.md. All dtypes get the same numbers, rounded."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{workload.name} {kind}".encode()))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    batch, heads, queries, points = workload.batch, workload.heads, workload.queries, workload.points
    levels = torch.tensor(workload.levels, device=device)
    pixels = int(levels.prod(1).sum())
    value = normal(batch, pixels, heads, workload.channels)
    weights = normal(batch, queries, heads, len(levels) * points).softmax(-1).unflatten(-1, (len(levels), points))
    shape = (batch, queries, heads, len(levels), points, 2)
    if kind == "uniform":
        locations = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    elif kind == "local":
        angles = torch.arange(heads, device=device, dtype=torch.float64) * (2 * math.pi / heads)
        directions = torch.stack([angles.cos(), angles.sin()], -1)
        reach = 0.75 * torch.arange(1, points + 1, device=device, dtype=torch.float64)
        offsets = normal(*shape).double() + directions[:, None, None] * reach[:, None]
        centres = _reference_points(workload, generator, device)
        locations = centres[:, :, None, None, None] + offsets / levels.flip(1)[:, None]
    else:
        raise ValueError(f"locations `{kind}` are not known; known: local, uniform")
    grad_output = normal(batch, queries, heads * workload.channels)
    # By way of float32, as the laboratory rounds.
    value, locations, weights, grad_output = (
        tensor.float().to(DTYPES[dtype]) for tensor in (value, locations, weights, grad_output)
    )
    return Inputs(workload, value, locations, weights, grad_output)


def _reference_points(workload: Workload, generator: torch.Generator, device: str) -> Tensor:
    """Where queries look, `[1 or N, Lq, 2]`."""
    rule, queries = workload.reference_points, workload.queries

    def grid(columns: int, lines: int) -> Tensor:
        y, x = torch.meshgrid(torch.arange(lines), torch.arange(columns), indexing="ij")
        return torch.stack([(x + 0.5) / columns, (y + 0.5) / lines], -1).flatten(0, 1).to(device, torch.float64)

    if rule == "uniform":
        shape = (workload.batch, queries, 2)
        return torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    if rule == "pixels":
        return torch.cat([grid(width, height) for height, width in workload.levels])[None]
    if rule == "raster":
        height, width = workload.levels[0]
        columns = math.ceil(math.sqrt(queries * width / height))
    elif isinstance(rule, dict) and "raster_width" in rule:
        columns = rule["raster_width"]
    else:
        raise ValueError(f"{workload.name}: reference points `{rule}` are not known")
    return grid(columns, math.ceil(queries / columns))[None, :queries]


def by_grid_sample(workload: Workload, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """The PyTorch code of Deformable-DETR; in float64, what all others are compared with."""
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    grids = (2 * locations - 1).transpose(1, 2).flatten(0, 1)
    output: Any = 0
    values = value.split([height * width for height, width in workload.levels], 1)
    for index, (image, (height, width)) in enumerate(zip(values, workload.levels, strict=True)):
        image = image.flatten(2).transpose(1, 2).reshape(batch * heads, channels, height, width)
        sampled = torch.nn.functional.grid_sample(image, grids[:, :, index], padding_mode="zeros", align_corners=False)
        weight = weights[:, :, :, index].transpose(1, 2).reshape(batch * heads, 1, queries, -1)
        output = output + (sampled * weight).sum(-1)
    return output.view(batch, heads * channels, queries).transpose(1, 2).contiguous()


def exact_results(inputs: Inputs) -> Tensors:
    """The output and the three gradients in float64 from the stored inputs, image by image to save memory."""
    pieces: list[Tensors] = []
    for image in range(inputs.workload.batch):
        part = slice(image, image + 1)
        given = [tensor[part].double().requires_grad_() for tensor in inputs.differentiable]
        output = by_grid_sample(inputs.workload, *given)
        gradients = torch.autograd.grad(output, given, inputs.grad_output[part].double())
        pieces.append((output.detach(), *gradients))
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def relative_error(found: Tensor, exact: Tensor, where: Tensor | None = None) -> float:
    """Relative L2, NaN if anything is NaN."""
    difference, size = found.detach().double() - exact, exact
    if where is not None:
        # Not by a product, which would keep a NaN that is masked out.
        difference, size = difference[where], size[where]
    norm = float(size.norm())
    return float(difference.norm()) / norm if norm > 0 else float(difference.norm())


def is_away_from_borders(inputs: Inputs) -> Tensor:
    """Which samples lie inside of their cell, by `BORDER` pixels in both directions."""
    sizes = torch.tensor(inputs.workload.levels, device=inputs.locations.device).flip(1)[:, None]
    pixels = inputs.locations.double() * sizes - 0.5
    return ((pixels - pixels.round()).abs() > BORDER).all(-1)


def errors_of(found: Tensors, exact: Tensors, inputs: Inputs) -> dict[str, float]:
    """By column."""
    output, value, locations, weights = (
        relative_error(result, expected) for result, expected in zip(found, exact, strict=True)
    )
    away = relative_error(found[2], exact[2], is_away_from_borders(inputs))
    return {
        "error_output": output,
        "error_value": value,
        "error_locations": locations,
        "error_locations_away": away,
        "error_weights": weights,
    }


# The peers: from a workload and a device to a function.


def _msdeform(workload: Workload, device: str) -> Attend:
    import msdeform

    levels = list(workload.levels)
    return lambda value, locations, weights: msdeform.ms_deform_attn(value, levels, None, locations, weights)


def _deformops(backend: str | None, table: torch.dtype) -> Callable[[Workload, str], Attend]:
    """With level tables in the dtype that the backend reads, so that no call converts them."""

    def make(workload: Workload, device: str) -> Attend:
        from deformops.registry import Backend, msda

        chosen = None if backend is None else Backend[backend]
        levels = torch.tensor(workload.levels)
        starts = levels.prod(1).cumsum(0) - levels.prod(1)
        levels, starts = levels.to(device, table), starts.to(device, table)
        return lambda value, locations, weights: msda(
            value, levels, starts, locations, weights.flatten(3), backend=chosen
        )

    return make


def _grid_sample(workload: Workload, device: str) -> Attend:
    return lambda value, locations, weights: by_grid_sample(workload, value, locations, weights)


PEERS: dict[str, Callable[[Workload, str], Attend]] = {
    OURS: _msdeform,
    "deformops-triton": _deformops("TRITON", torch.int32),
    "deformops-cuda": _deformops("CUDA", torch.int64),
    "deformops-auto": _deformops(None, torch.int32),
    "grid_sample": _grid_sample,
}


class Peer:
    """An implementation on the inputs of a case."""

    def __init__(self, name: str, inputs: Inputs, device: str) -> None:
        self.name, self.inputs = name, inputs
        self.attend = PEERS[name](inputs.workload, device)
        self.numbers: dict[str, float | None] = {}
        self.samples: dict[str, list[float]] = {}

    def forward(self) -> Tensor:
        """Inference."""
        with torch.no_grad():
            return self.attend(*self.inputs.differentiable)

    def make_backward(self) -> Callable[[], Tensors]:
        """A function that computes the three gradients; the forward was done before, on the current stream."""
        given = [tensor.detach().requires_grad_() for tensor in self.inputs.differentiable]
        output, grad_output = self.attend(*given), self.inputs.grad_output
        return lambda: torch.autograd.grad(output, given, grad_output, retain_graph=True)


class ContextLost(RuntimeError):
    """A fault has ended the CUDA context, and with it all that would follow in this process."""


def reason_of(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class CpuClock:
    """The wall clock; there are neither graphs nor an allocator that counts."""

    has_graphs = False

    def check(self) -> None:
        """Nothing is lost by an error."""

    def poison(self, inputs: Inputs) -> None:
        """Memory of a CPU is not kept for the next call."""

    def peak_mib(self, call: Callable[[], object]) -> float | None:
        """Not known."""
        call()
        return None

    def warm_up(self, call: Callable[[], object]) -> Callable[[], float]:
        """A function that times one call, in microseconds."""
        call()

        def sample() -> float:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e6

        return sample


class GpuClock:
    """CUDA events. While the CPU queues a timed call, the GPU spins: what is timed is not the CPU."""

    has_graphs = True
    device = "cuda"
    # The longest that the GPU spins for a call, and what it adds to the time that queueing took before.
    MOST_US, MARGIN_US = 10_000.0, 100.0

    def __init__(self) -> None:
        cycles = 4_000_000
        torch.cuda._sleep(cycles)
        self._cycles_per_us = cycles / self._time(lambda: torch.cuda._sleep(cycles))

    def check(self) -> None:
        """Fails if nothing can be computed any more."""
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            raise ContextLost(reason_of(error)) from error

    @staticmethod
    def _time(call: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def poison(self, inputs: Inputs) -> None:
        """Fills what PyTorch's allocator hands out next with NaN."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # More than any peer takes for a call; and blocks of the pool for small tensors.
        size = 6 * sum(tensor.nbytes for tensor in inputs.differentiable) + 2**30
        blocks = [torch.full((size // 4,), math.nan, device=self.device)]
        blocks += [torch.full((2**17,), math.nan, device=self.device) for _ in range(32)]
        del blocks

    def peak_mib(self, call: Callable[[], object]) -> float | None:
        """What a call has allocated at most, above what was there."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        torch.cuda.synchronize()
        del results
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def warm_up(self, call: Callable[[], object]) -> Callable[[], float]:
        """A function that times one call, in microseconds."""
        host_us = 0.0
        for attempt in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if attempt >= 2:
                host_us = max(host_us, (time.perf_counter() - start) * 1e6)
        torch.cuda.synchronize()
        cover = int(self._cycles_per_us * min(2 * host_us + self.MARGIN_US, self.MOST_US))

        def sample() -> float:
            # The peer before left its own tensors in L2.
            call()
            call()
            torch.cuda._sleep(cover)
            return self._time(call)

        return sample

    def capture(self, make: Callable[[], Callable[[], object]]) -> Callable[[], float]:
        """A function that replays a graph of calls and gives the time of one, in microseconds."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Gradients are computed on the stream of their forward.
            call = make()
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(GRAPH_CALLS):
                call()
        graph.replay()
        torch.cuda.synchronize()

        def sample() -> float:
            graph.replay()
            return self._time(graph.replay) / GRAPH_CALLS

        return sample


Clock = CpuClock | GpuClock


def measure(
    case: Case, folder: Path, device: str, runs: int, clock: Clock, tell: Callable[[dict[str, Any]], None]
) -> Iterator[Row]:
    """The rows of a case. A peer that fails has no row, one whose capture fails no graph times."""

    def step(what: str, peer: str | None, run: Callable[[], None]) -> bool:
        tell({"step": what, "peer": peer})
        try:
            run()
        except Exception as error:
            tell({"failed": what, "peer": peer, "reason": reason_of(error)})
            clock.check()
            return False
        return True

    tell({"step": "exact results", "peer": None})
    inputs = draw(Workload.load(folder, case.workload, device), case.locations, case.dtype, device)
    kept = [tensor.clone() for tensor in (*inputs.differentiable, inputs.grad_output)]
    exact = exact_results(inputs)
    peers: list[Peer] = []
    for name in case.peers:

        def prepare(name: str = name) -> None:
            peers.append(_prepared(Peer(name, inputs, device), exact, clock))

        step("errors and memory", name, prepare)

    turns = {}
    for peer in list(peers):

        def warm_up(peer: Peer = peer) -> None:
            backward = peer.make_backward()
            turns[peer.name] = {"forward_us": clock.warm_up(peer.forward), "backward_us": clock.warm_up(backward)}

        if not step("warming up", peer.name, warm_up):
            peers.remove(peer)
    if clock.has_graphs and inputs.workload.samples < GRAPH_SAMPLES:
        for peer in peers:

            def capture(peer: Peer = peer) -> None:
                graphs = {
                    "forward_graph_us": clock.capture(lambda: peer.forward),
                    "backward_graph_us": clock.capture(peer.make_backward),
                }
                turns[peer.name].update(graphs)

            # A capture is void if something else uses the GPU in a way that captures forbid.
            _ = step("capturing a graph", peer.name, capture) or step("capturing again", peer.name, capture)
    tell({"step": "timing", "peer": None})
    _time_in_turns(peers, turns, runs)
    for tensor, before in zip((*inputs.differentiable, inputs.grad_output), kept, strict=True):
        if not torch.equal(tensor, before):
            raise RuntimeError("a peer has changed its inputs")
    for peer in peers:
        yield _row(peer, case, runs)


def _prepared(peer: Peer, exact: Tensors, clock: Clock) -> Peer:
    """The peer after its first calls, which compile what the peer needs."""
    peer.forward()
    peer.make_backward()()
    clock.poison(peer.inputs)
    output = peer.forward()
    clock.poison(peer.inputs)
    gradients = peer.make_backward()()
    peer.numbers |= errors_of((output, *gradients), exact, peer.inputs)
    del output, gradients
    peer.numbers["backward_memory_mib"] = clock.peak_mib(peer.make_backward())
    return peer


def _time_in_turns(peers: Sequence[Peer], turns: dict[str, dict[str, Callable[[], float]]], runs: int) -> None:
    """One sample of each peer after the other. Another peer begins each round."""
    for run in range(runs):
        first = run % max(1, len(peers))
        for peer in [*peers[first:], *peers[:first]]:
            for what, sample in turns[peer.name].items():
                peer.samples.setdefault(what, []).append(sample())


def _row(peer: Peer, case: Case, runs: int) -> Row:
    row = dict.fromkeys(COLUMNS, "")
    row |= {"peer": peer.name, "workload": case.workload, "locations": case.locations, "dtype": case.dtype}
    row |= {what: cell(statistics.median(samples), ".2f") for what, samples in peer.samples.items()}
    row |= {"forward_runs": str(runs), "backward_runs": str(runs)}
    for what, number in peer.numbers.items():
        row[what] = cell(number, ".1f" if what == "backward_memory_mib" else ".3e")
    return row


def versions() -> str:
    """What is measured, for the description of a run."""
    import importlib.metadata as metadata

    def version(package: str) -> str:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            return f"{package} of an unknown version"

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return f"{version('msdeform')}, {version('deformops')}, torch {torch.__version__}{cuda}, {device}"


def say(message: dict[str, Any]) -> None:
    """Tells `peers.py`."""
    print(f"{MESSAGE}{json.dumps(message)}", flush=True)


def build() -> None:
    """In a process of its own: compiles the CUDA backend of deformops, which takes minutes."""
    from deformops.registry import Backend, msda

    msda.load(Backend.CUDA)
    say({"built": True})


def work(cases: Sequence[Case], folder: Path, device: str, runs: int) -> None:
    """In a worker: measures cases one after the other."""
    say({"versions": versions()})
    clock: Clock = GpuClock() if device == "cuda" else CpuClock()
    for index, case in enumerate(cases):
        say({"case": index})
        try:
            for row in measure(case, folder, device, runs, clock, say):
                say({"row": row})
        except ContextLost:
            raise
        except Exception as error:
            say({"failed": "the case", "peer": None, "reason": reason_of(error)})
            clock.check()
    say({"done": True})


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build()
    else:
        given = json.loads(sys.argv[1])
        work(
            [Case(**{**case, "peers": tuple(case["peers"])}) for case in given["cases"]],
            Path(given["folder"]),
            given["device"],
            given["runs"],
        )
