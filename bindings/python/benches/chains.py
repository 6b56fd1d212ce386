"""Times of the fused operator and of the operations that it replaces on a GPU: forward and training step.

    python benches/chains.py                   # a line for every row; `record.py --parts chains` keeps the rows
    python benches/chains.py --table RECORD    # the table of docs/from-offsets.md from a record

`parts` is PyTorch's softmax and additions around `msdeform.ms_deform_attn`, as layers have them; `compiled` the same
under `torch.compile`; `fused` is `msdeform.ms_deform_attn_from_offsets`. Device time: a CUDA graph of 50 calls of each
is replayed, the three in turns, so that neither slow hosts nor the start of a graph count. Locations are those of
trained models, a few pixels around their references. Before anything is timed, outputs and gradients are compared with
float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msdeform
import torch
from torch import Tensor

WORKLOADS = ("ddetr_enc", "m2f_enc", "bevformer_tsa", "ddetr_dec", "dino_dec", "rtdetr_dec")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BOUNDS = {"f32": 2e-4, "f16": 2e-3, "bf16": 1.6e-2}
# Among output and gradients.
OFFSETS = 2
# A graph takes 5 us to start. With only ten decoder calls in it, the start would be a tenth of the time of each call.
ROUNDS, CALLS = 20, 50


@dataclass
class Chain:
    """Tensors of a workload, and the ways to its output."""

    shapes: list[tuple[int, int]]
    sizes: Tensor
    references: Tensor
    leaves: list[Tensor]
    upstream: Tensor

    def parts(self, value: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        """As layers have it."""
        references, points = self.references.to(offsets.dtype)[:, :, None, :, None], offsets.shape[4]
        if references.shape[-1] == 2:
            locations = references + offsets / self.sizes[:, None].to(offsets.dtype)
        else:
            locations = references[..., :2] + offsets / points * references[..., 2:] * 0.5
        weights = logits.flatten(3).softmax(-1).view(logits.shape)
        return msdeform.ms_deform_attn(value, self.shapes, None, locations, weights)

    def fused(self, value: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        """In one pass."""
        return msdeform.ms_deform_attn_from_offsets(value, self.shapes, self.references, offsets, logits)

    def step(self, call: Callable[..., Tensor], work: str) -> list[Tensor]:
        """A forward, or a forward and its gradients."""
        if work == "forward":
            with torch.no_grad():
                return [call(*self.leaves)]
        output = call(*self.leaves)
        return [output.detach(), *torch.autograd.grad(output, self.leaves, self.upstream)]

    def exact(self) -> list[Tensor]:
        """Output and gradients in float64, on the CPU."""
        leaves = [leaf.detach().double().cpu().requires_grad_() for leaf in self.leaves]
        twin = Chain(self.shapes, self.sizes, self.references.double().cpu(), leaves, self.upstream.double().cpu())
        return twin.step(twin.fused, "training")


def make_chain(workload: dict[str, Any], dtype: torch.dtype, batch: int, queries: int | None = None) -> Chain:
    """Fresh random numbers for a workload."""
    generator = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)
    shapes = [(height, width) for height, width in workload["levels"]]
    pixels = sum(height * width for height, width in shapes)
    each_pixel = workload["queries"] == "pixels"
    heads, channels, points, levels = workload["heads"], workload["channels"], workload["points"], len(shapes)
    if each_pixel:
        rows = [
            torch.stack(
                torch.meshgrid((torch.arange(w) + 0.5) / w, (torch.arange(h) + 0.5) / h, indexing="xy"), dim=-1
            ).view(-1, 2)
            for h, w in shapes
        ]
        centres = torch.cat(rows).cuda().expand(batch, -1, -1)
    else:
        centres = torch.rand(batch, workload["queries"], 2, device="cuda", generator=generator)
    if queries is not None:
        kept = torch.randperm(centres.shape[1])[:queries].sort().values.cuda()
        # For the comparison: from the middle of a pixel, offsets of few bits lead to borders of cells, where gradients
        # jump.
        aside = 1e-3 * torch.rand(batch, len(kept), 2, device="cuda", generator=generator)
        centres = centres[:, kept] + aside
    kind = workload["references"]
    references = centres[:, :, None].expand(-1, -1, 1 if kind == "box" else levels, -1)
    if kind.startswith("box"):
        sides = 0.05 + 0.3 * torch.rand(references.shape, device="cuda", generator=generator)
        references = torch.cat([references, sides], dim=-1)

    def random(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, device="cuda", generator=generator)

    count = references.shape[1]
    tensors = (
        random(pixels, heads, channels),
        2 * random(count, heads, levels, points, 2),
        random(count, heads, levels, points),
    )
    leaves = [tensor.to(dtype).requires_grad_() for tensor in tensors]
    sizes = torch.tensor([(width, height) for height, width in shapes], device="cuda")
    return Chain(shapes, sizes, references.contiguous(), leaves, random(count, heads * channels).to(dtype))


def _errors(chain: Chain, call: Callable[..., Tensor]) -> list[float]:
    found = chain.step(call, "training")
    return [
        float((ours.double().cpu() - theirs).norm() / theirs.norm())
        for ours, theirs in zip(found, chain.exact(), strict=True)
    ]


@cache
def _stream() -> torch.cuda.Stream:
    """One for all captures: autograd wants leaves on the stream on which they were first used."""
    return torch.cuda.Stream()


def _captured(chain: Chain, call: Callable[..., Tensor], work: str) -> torch.cuda.CUDAGraph:
    stream, graph = _stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            chain.step(call, work)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            chain.step(call, work)
    return graph


def _time_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return round(start.elapsed_time(end) * 1e3 / CALLS, 3)


def measure() -> Iterator[dict[str, Any]]:
    """One row per workload, format and pass, with every sample."""
    workloads = {workload["name"]: workload for workload in msdeform.workloads()}
    for name in WORKLOADS:
        workload = workloads[name]
        for dtype, kind in DTYPES.items():
            # The reference takes few queries; so does the comparison.
            small = make_chain(workload, kind, 1, 512)
            errors = _errors(small, small.fused)
            # The gradient of offsets jumps from cell to cell, and half precision puts many samples exactly on borders.
            exact = [error for place, error in enumerate(errors) if place != OFFSETS]
            if not (max(exact) < BOUNDS[dtype] and errors[OFFSETS] < 0.1):
                raise SystemExit(f"{name} {dtype}: errors {errors} of output and gradients, bound {BOUNDS[dtype]}")
            chain = make_chain(workload, kind, workload["batch"])
            ways = {
                "parts": chain.parts,
                "compiled": torch.compile(chain.parts, fullgraph=True, dynamic=False),
                "fused": chain.fused,
            }
            for work in ("forward", "training"):
                graphs = {way: _captured(chain, call, work) for way, call in ways.items()}
                samples: dict[str, list[float]] = {way: [] for way in ways}
                for turn in range(ROUNDS + 2):
                    for way, graph in graphs.items():
                        taken = _time_us(graph)
                        if turn >= 2:
                            samples[way].append(taken)
                row = {"workload": name, "dtype": dtype, "pass": work, "errors": errors, "samples_us": samples}
                print(summary(row), flush=True)
                yield row
            del chain, ways, graphs
            torch._dynamo.reset()
            torch.cuda.empty_cache()


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    times = {way: statistics.median(samples) for way, samples in row["samples_us"].items()}
    columns = "  ".join(f"{way} {time:8.2f} us" for way, time in times.items())
    return f"{row['workload']:14} {row['dtype']:4} {row['pass']:8}  {columns}  error {max(row['errors']):.1e}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What a page shows of them: forward / training step."""
    lines = ["| workload | dtype | parts | compiled | fused |", "|---|---|---|---|---|"]
    times: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        ways = times.setdefault((row["workload"], row["dtype"]), {})
        for way, samples in row["samples_us"].items():
            median = statistics.median(samples)
            ways.setdefault(way, []).append(f"{median:.0f}" if median >= 100 else f"{median:.3g}")
    for (workload, dtype), ways in times.items():
        lines.append(f"| {workload} | {dtype} | " + " | ".join(" / ".join(pair) for pair in ways.values()) + " |")
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """Measures and prints, or prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, metavar="RECORD", help="a python.json")
    arguments = parser.parse_args(given)
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text())["chains"]), end="")
        return 0
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU, and a CPU has no graphs to replay")
    return 0 if list(measure()) else 1


if __name__ == "__main__":
    sys.exit(main())
