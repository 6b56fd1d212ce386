"""Times of calls from Python, compared with PyTorch's `grid_sample` if PyTorch is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

import msdeform

# Built-in workloads. A CPU would take seconds for an encoder with `grid_sample`.
WORKLOADS = {"cpu": ("rtdetr_dec", "ddetr_dec"), "cuda": ("rtdetr_dec", "ddetr_enc")}
SECONDS = 0.2
# Seconds for the whole command, which a new user waits for.
MOST_SECONDS = 12.0
Row = dict[str, Any]


def rows(torch: Any, devices: list[str], start: float) -> Iterator[Row]:
    """A row for each device, workload and dtype, in milliseconds, of the forward alone and with the gradients.

    After the first row, no row begins when the time since `start` is up.
    """
    formats = ("float32",) if torch is None else ("float32", "bfloat16")
    cases = [(device, name, dtype) for device in devices for name in _workloads(device) for dtype in formats]
    facts = {workload["name"]: workload for workload in msdeform.workloads()}
    for number, (device, name, dtype) in enumerate(cases):
        if number and time.perf_counter() - start > MOST_SECONDS:
            return
        inputs = _inputs(facts[name], device)
        yield _numpy_row(name, inputs) if torch is None else _torch_row(torch, name, device, dtype, inputs)


def _workloads(device: str) -> tuple[str, ...]:
    return WORKLOADS[device.split(":")[0]]


def _inputs(workload: dict[str, Any], device: str) -> tuple[list[tuple[int, int]], Any, Any, Any]:
    levels = [(height, width) for height, width in workload["levels"]]
    pixels = sum(height * width for height, width in levels)
    queries = pixels if workload["queries"] == "pixels" else workload["queries"]
    batch = workload.get("batch_cpu", workload["batch"]) if device == "cpu" else workload["batch"]
    heads, channels, points = workload["heads"], workload["channels"], workload["points"]
    random = np.random.default_rng(24)
    value = random.standard_normal((batch, pixels, heads, channels), dtype=np.float32)
    locations = random.random((batch, queries, heads, len(levels), points, 2), dtype=np.float32)
    weights = np.full((batch, queries, heads, len(levels), points), 1 / (len(levels) * points), np.float32)
    return levels, value, locations, weights


def _numpy_row(workload: str, inputs: Any) -> Row:
    levels, value, locations, weights = inputs
    forward = _median_ms(lambda: msdeform.ms_deform_attn(value, levels, None, locations, weights), lambda: None)
    return {"device": "cpu", "workload": workload, "dtype": "float32", "forward_ms": forward}


def _torch_row(torch: Any, workload: str, device: str, dtype: str, inputs: Any) -> Row:
    levels, *arrays = inputs
    tensors = [torch.from_numpy(array).to(device, getattr(torch, dtype)) for array in arrays]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    finish = (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))

    def ours(value: Any, locations: Any, weights: Any) -> Any:
        return msdeform.ms_deform_attn(value, levels, None, locations, weights)

    def theirs(value: Any, locations: Any, weights: Any) -> Any:
        return by_grid_sample(torch, value, levels, locations, weights)

    row: Row = {"device": device, "workload": workload, "dtype": dtype}
    for prefix, call in (("", ours), ("grid_sample_", theirs)):
        row[f"{prefix}forward_ms"] = _median_ms(lambda call=call: call(*tensors), finish)  # type: ignore[misc]
        row[f"{prefix}training_ms"] = _median_ms(
            lambda call=call: torch.autograd.grad(call(*leaves).sum(), leaves),  # type: ignore[misc]
            finish,
        )
    return row


def by_grid_sample(torch: Any, value: Any, levels: Any, locations: Any, weights: Any) -> Any:
    """The operator as models compute it without a compiled one: a `grid_sample` per level, then a weighted sum."""
    batch, _, heads, channels = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    sampled = []
    pieces = value.split([height * width for height, width in levels], dim=1)
    for level, ((height, width), pixels) in enumerate(zip(levels, pieces, strict=True)):
        image = pixels.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        sampled.append(torch.nn.functional.grid_sample(image, grid, padding_mode="zeros", align_corners=False))
    stacked = torch.stack(sampled, -2).flatten(-2)
    share = weights.transpose(1, 2).reshape(batch * heads, 1, queries, len(levels) * points)
    output = (stacked * share).sum(-1).view(batch, heads * channels, queries)
    return output.transpose(1, 2)


def _median_ms(call: Callable[[], object], finish: Callable[[], object]) -> float | None:
    """The median time of the calls that fit into a moment, after a warm-up call. `None` if the call cannot run."""
    samples: list[float] = []
    try:
        call()
        finish()
        end = time.perf_counter() + SECONDS
        while not samples or (time.perf_counter() < end and len(samples) < 200):
            start = time.perf_counter()
            call()
            finish()
            samples.append(time.perf_counter() - start)
    except (RuntimeError, NotImplementedError):
        # An old PyTorch has no half precision here, or GPU memory is short. The table then shows a dash.
        return None
    return 1e3 * median(samples)
