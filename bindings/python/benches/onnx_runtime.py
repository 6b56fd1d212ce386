"""Times of the operator in ONNX Runtime and of what exporters write today: a GridSample per level, stacked and summed.

    python benches/onnx_runtime.py [--workloads NAME ...] [--rounds N] [--threads N] [--library FILE]
                                   [--record] [--root records]

Both models get the same inputs in one process and are compared before anything is timed. Then they take turns, and the
figure is the median of the ratios of neighbours in time, so that other work on the machine slows both sides down. The
record is `<root>/<device>/<date>-<revision>-onnxruntime/onnxruntime.json`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from msdeform.onnx import library_path
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
HEADS, CHANNELS = 8, 32
# Relative L2 between two computations of the same in float32.
BOUND = 1e-5
SCHEMA = 1


@dataclass(frozen=True)
class Workload:
    """A shape that people run; encoders sample near their own pixel, decoders anywhere."""

    images: int
    levels: tuple[tuple[int, int], ...]
    points: int
    queries: int | None
    rounds: int

    @property
    def pixels(self) -> int:
        """Of all levels."""
        return sum(height * width for height, width in self.levels)


PYRAMID = ((100, 167), (50, 84), (25, 42), (13, 21))
WORKLOADS = {
    "ddetr_enc": Workload(1, PYRAMID, 4, None, 12),
    "rtdetr_dec": Workload(1, ((80, 80), (40, 40), (20, 20)), 4, 300, 100),
}


def inputs_of(workload: Workload) -> dict[str, Array]:
    """Random values, and locations as a trained model has them."""
    random = np.random.default_rng(20)
    queries, levels = workload.queries or workload.pixels, len(workload.levels)
    shape = (workload.images, queries, HEADS, levels, workload.points)
    if workload.queries is None:
        centres = np.concatenate([_centres(height, width) for height, width in workload.levels])
        scale = np.array([(width, height) for height, width in workload.levels])[:, None]
        locations = centres[None, :, None, None, None] + random.normal(0, 2, (*shape, 2)) / scale
    else:
        locations = random.random((*shape, 2))
    weights = random.random(shape)
    return {
        "value": random.standard_normal((workload.images, workload.pixels, HEADS, CHANNELS)).astype(np.float32),
        "sampling_locations": locations.astype(np.float32),
        "attention_weights": (weights / weights.sum((3, 4), keepdims=True)).astype(np.float32),
    }


def _centres(height: int, width: int) -> Array:
    rows, columns = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    return np.stack([columns, rows], -1).reshape(-1, 2)


class Graph:
    """Nodes in order, and constants by their content."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        """A node; returns its output."""
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], domain=domain, **attributes))
        return output

    def constant(self, array: Any) -> str:
        """A constant; returns its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, workload: Workload) -> bytes:
        """The file, for the inputs of a workload, of any batch."""
        levels, points = len(workload.levels), workload.points
        queries = workload.queries or workload.pixels
        shapes = {
            "value": ["batch", workload.pixels, HEADS, CHANNELS],
            "sampling_locations": ["batch", queries, HEADS, levels, points, 2],
            "attention_weights": ["batch", queries, HEADS, levels, points],
        }
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", queries, HEADS * CHANNELS])
        graph = helper.make_graph(self.nodes, "attention", given, [output], self.constants)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("msdeform", 1)]
        found: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
        return found


def grid_sample_model(workload: Workload) -> bytes:
    """As `multi_scale_deformable_attn_pytorch` of mmcv, and its copies everywhere, are exported."""
    graph = Graph()
    add, queries = graph.add, workload.queries or workload.pixels
    sizes = [height * width for height, width in workload.levels]
    one = graph.constant(np.float32(1))
    grids = add("Sub", add("Mul", "sampling_locations", graph.constant(np.float32(2))), one)
    ends = np.cumsum([0, *sizes])
    sampled = []
    for level, (height, width) in enumerate(workload.levels):
        bounds = [graph.constant(np.array([end])) for end in (ends[level], ends[level + 1])]
        value = add("Slice", "value", *bounds, graph.constant(np.array([1])))
        value = add("Reshape", value, graph.constant(np.array([0, sizes[level], HEADS * CHANNELS])))
        value = add("Transpose", value, perm=[0, 2, 1])
        value = add("Reshape", value, graph.constant(np.array([-1, CHANNELS, height, width])))
        grid = add("Gather", grids, graph.constant(np.int64(level)), axis=3)
        grid = add("Transpose", grid, perm=[0, 2, 1, 3, 4])
        grid = add("Reshape", grid, graph.constant(np.array([-1, queries, workload.points, 2])))
        attributes = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0}
        found = add("GridSample", value, grid, **attributes)
        sampled.append(add("Unsqueeze", found, graph.constant(np.array([-2]))))
    stacked = add("Concat", *sampled, axis=-2)
    samples = len(sizes) * workload.points
    stacked = add("Reshape", stacked, graph.constant(np.array([-1, CHANNELS, queries, samples])))
    weights = add("Transpose", "attention_weights", perm=[0, 2, 1, 3, 4])
    weights = add("Reshape", weights, graph.constant(np.array([-1, 1, queries, samples])))
    summed = add("ReduceSum", add("Mul", stacked, weights), graph.constant(np.array([-1])), keepdims=0)
    summed = add("Reshape", summed, graph.constant(np.array([-1, HEADS * CHANNELS, queries])))
    add("Transpose", summed, perm=[0, 2, 1], output="output")
    return graph.model(workload)


def operator_model(workload: Workload) -> bytes:
    """One node."""
    graph = Graph()
    starts = np.cumsum([0, *(height * width for height, width in workload.levels)])[:-1]
    shapes, starts_name = graph.constant(np.array(workload.levels)), graph.constant(starts.astype(np.int64))
    names = ("value", shapes, starts_name, "sampling_locations", "attention_weights")
    graph.add("MSDeformAttn", *names, domain="msdeform", output="output")
    return graph.model(workload)


def session(model: bytes, threads: int, library: str) -> Any:
    """A session on the CPU, where most people run ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    options.intra_op_num_threads = threads
    # Two sessions take turns here, and threads that wait by turning in circles would take each other's cores: either
    # side was up to twice as slow, and varied by as much.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def relative_error(found: Array, wanted: Array) -> float:
    """Relative L2; NaN where anything is."""
    wide = wanted.astype(np.float64)
    return float(np.linalg.norm(found - wide) / np.linalg.norm(wide))


def time_us(run: Callable[[], object]) -> float:
    """One run by the wall clock."""
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e3


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """The middle half and the ends."""
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75))
    found = {"min": min(samples), "p25": low, "median": median, "p75": high, "max": max(samples)}
    return {name: round(float(number), 2) for name, number in found.items()}


def measure(name: str, threads: int, library: str, rounds: int | None = None) -> dict[str, Any]:
    """A row: both sides verified, then timed in turns."""
    workload = WORKLOADS[name]
    inputs = inputs_of(workload)
    sides = [session(make(workload), threads, library) for make in (grid_sample_model, operator_model)]
    runs: list[Callable[[], Array]] = [lambda side=side: side.run(None, inputs)[0] for side in sides]  # type: ignore[misc]
    before, after = (run() for run in runs)
    error = relative_error(after, before)
    if not error <= BOUND:
        raise RuntimeError(f"{name}: the two differ by {error}, more than {BOUND}")
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds or workload.rounds):
        for run, samples in zip(runs, times, strict=True):
            samples.append(time_us(run))
    ratios = [slow / fast for slow, fast in zip(*times, strict=True)]
    return {
        "workload": name,
        "images": workload.images,
        "dtype": "f32",
        "threads": threads,
        "rel_l2": float(f"{error:.2e}"),
        "grid_sample_us": quantiles(times[0]),
        "operator_us": quantiles(times[1]),
        "speedup": quantiles(ratios),
        "samples_us": {
            "grid_sample": [round(sample, 2) for sample in times[0]],
            "operator": [round(sample, 2) for sample in times[1]],
        },
    }


def summary(row: dict[str, Any]) -> str:
    """A line for people."""
    before, after, speedup = row["grid_sample_us"], row["operator_us"], row["speedup"]
    return (
        f"{row['workload']}: GridSample {before['median'] / 1e3:.2f} ms, operator {after['median'] / 1e3:.2f} ms, "
        f"{speedup['median']:.1f}x ({speedup['p25']:.1f} to {speedup['p75']:.1f}), error {row['rel_l2']:.0e}"
    )


def write(
    rows: list[dict[str, Any]],
    root: Path,
    command: Sequence[str],
    script: str = "onnx_runtime.py",
    runtime: tuple[str, str] = ("onnxruntime", onnxruntime.__version__),
) -> Path:
    """The record of a runtime by its name and version; returns its folder."""
    import record

    name, version = runtime

    date, (commit, dirty) = datetime.datetime.now(datetime.timezone.utc), record.build()
    device = record.device_name("cpu")
    folder = root / record.slug(device) / f"{date:%Y-%m-%d}-{record.revision()}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "schema": SCHEMA,
        "date": f"{date:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit,
        "dirty": dirty,
        "command": record.command_line(script, command),
        "environment": {
            "cpu": device,
            name: version,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            # Other work on the machine: both sides of a ratio have it.
            "load": round(os.getloadavg()[0], 2),
            "system": platform.platform(),
        },
        "rows": rows,
    }
    pending = folder / f".{name}.json"
    pending.write_text(record.sealed(json.dumps(found, indent=2, allow_nan=False) + "\n"))
    pending.replace(folder / f"{name}.json")
    return folder


def main(given: Sequence[str] | None = None) -> int:
    """Measures, prints, records where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, help="runs of each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of a session")
    parser.add_argument("--library", default=library_path(), help="the operators, if not the package's")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[3] / "records")
    arguments = parser.parse_args(given)
    rows = []
    for name in arguments.workloads:
        rows.append(measure(name, arguments.threads, arguments.library, arguments.rounds))
        print(summary(rows[-1]), flush=True)
    if len(rows) > 1:
        product = math.prod(row["speedup"]["median"] for row in rows)
        print(f"geometric mean {product ** (1 / len(rows)):.1f}x")
    if arguments.record:
        print(write(rows, arguments.root, sys.argv[1:] if given is None else given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
