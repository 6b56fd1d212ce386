"""Measures whole models before and after the patch: time, kernels, peak memory, and the error of the results.

    python benches/models.py [--device cuda|cpu] [--modes eager graph compiled] [--models NAME ...] [--rounds N]
                             [--passes inference training] [--formats f32 f16 bf16]

It runs one model of each package (see `zoo`) in three ways, with random weights, so nothing is downloaded. `before` is
the package without a compiled kernel: `grid_sample` per level, or LibreYOLO's own Triton kernel for inference on a GPU.
`plain` replaces attention functions by `patch(fuse=False)`. `after` also replaces whole layers by `patch()`. The three
take turns pass by pass, so a machine that gets slower slows down all of them. After the medians come the medians of the
ratios of neighbouring passes. If a model cannot run in a mode, its row gives the reason. If it fails only without the
patch, `plain` and `after` are compared with each other.

On a GPU (with the wheel, torch and transformers; ultralytics, rfdetr, libreyolo and mmdet for their models, as
`tests/test_patching_others.py` installs the last two), by `record.py`, which keeps the rows:

    python benches/record.py --root target/runs --parts models                      # everything
    python benches/record.py --root target/runs --parts models --modes eager graph  # nothing is compiled
    python benches/record.py --root target/runs --parts models --formats bf16       # one dtype, in every mode
    python benches/record.py --root target/runs --parts models --workers 8          # models compile in parallel

Another run with the same revision adds missing rows, so the work can be split into runs of `--seconds`. On a CPU:

    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python benches/models.py --device cpu       # minutes on two idle cores

This uses smaller images, in float32 and bfloat16, and runs eagerly unless `--modes` names other modes. The variable is
for virtual machines that announce AMX and do not have it.

    python benches/models.py --warm-up Deformable-DETR

This takes a step in every dtype, to fill the cache of kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from modes import EVERY_FORMAT, PLAN, LeftOut, make_steps
from passes import (
    AFTER,
    BEFORE,
    LOSS_SCALES,
    PLAIN,
    WAYS,
    Results,
    Step,
    Switch,
    compare,
    count_kernels,
    find_loss_scale,
    make_step,
    peak_mib,
    prepare,
    results,
    synchronise,
)
from torch import Tensor
from zoo import MODELS, Model

ROUNDS = {"cuda": 6, "cpu": 5}
# Compiling for a CPU takes minutes for each model.
MODES = {"cuda": tuple(PLAN["cuda"]), "cpu": ("eager",)}
PASSES = ("inference", "training")
# Of the fully patched model, by what it is compared with; and in words.
SPEEDUPS = {"speedup": BEFORE, "speedup_over_plain": PLAIN}
SPOKEN = {"speedup": "in all", "speedup_over_plain": "by fusing"}

# A mode, a model, a pass and a format: one row.
Key = tuple[str, str, str, str]
# What is known of each way.
Sides = dict[str, dict[str, Any]]
# Called when everything is compiled, before anything is timed.
Gate = Callable[[], None]


def key_of(row: dict[str, Any]) -> Key:
    """What tells a row from the others; those of old records have no mode."""
    return row.get("mode", "eager"), row["model"], row["pass"], row["dtype"]


def plan(
    device: str, mode: str, passes: Sequence[str] | None = None, formats: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """Passes and formats to measure in a mode: those that are given, or as many as are worth their time."""
    usual_passes, usual_formats = PLAN[device][mode]
    return [(work, dtype) for work in passes or usual_passes for dtype in formats or usual_formats]


def _time_ms(network: Any, step: Step, scale: float, device: str) -> float:
    network.zero_grad()
    synchronise(device)
    start = time.perf_counter()
    step(scale)
    synchronise(device)
    return round((time.perf_counter() - start) * 1e3, 4)


def _measure_one(
    key: Key, model: Model, network: Any, pixels: Tensor, switch: Switch, exact: Results, rounds: int, gate: Gate
) -> dict[str, Any]:
    """The columns of one row, except those that name it."""
    mode, _, work, dtype = key
    device = pixels.device.type
    switch.set(BEFORE)
    scale, eager = find_loss_scale(network, make_step(model, network, pixels, work, dtype))
    ready = make_steps(mode, network, model, pixels, work, dtype, switch, scale)
    gate()
    # What is compiled is not compiled again when another way has had its turn.
    with torch._dynamo.config.patch(error_on_recompile=True):
        found, sides = _observe(mode, network, ready.steps, switch, scale, device)
        _time(network, ready.steps, switch, scale, device, rounds, sides)
    # A model that cannot be run in this mode without the patch is compared with itself as it is.
    expected = found.get(BEFORE, eager)
    row = {"loss_scale": scale, "fused_calls": ready.fused_calls, **compare(found[AFTER], expected, exact, dtype)}
    if PLAIN in found:
        errors = compare(found[PLAIN], expected, exact, dtype)
        sides[PLAIN] |= {name: errors[name] for name in errors if name.endswith("_error")}
    for name, way in SPEEDUPS.items():
        if way in sides:
            pairs = zip(sides[way]["samples_ms"], sides[AFTER]["samples_ms"], strict=True)
            row[name] = round(statistics.median(other / after for other, after in pairs), 4)
    for way, reason in ready.left_out.items():
        row[f"{way}_left_out"] = reason
    if ready.is_fault:
        row["is_fault"] = True
    return row | sides


def _observe(
    mode: str, network: Any, steps: dict[str, Step], switch: Switch, scale: float, device: str
) -> tuple[dict[str, Results], Sides]:
    """Results, memory and kernels of every way."""
    found: dict[str, Results] = {}
    sides: Sides = {}
    for way, step in steps.items():
        switch.set(way)
        network.zero_grad()
        found[way] = results(network, step(scale), scale)
        network.zero_grad()
        # A graph's memory was taken when it was captured.
        peak = None if mode == "graph" else round(peak_mib(device, lambda step=step: step(scale)), 1)
        network.zero_grad()
        kernels = count_kernels(lambda step=step: step(scale)) if device == "cuda" else None
        sides[way] = {"peak_mib": peak, "kernels": kernels}
    return found, sides


def _time(
    network: Any, steps: dict[str, Step], switch: Switch, scale: float, device: str, rounds: int, sides: Sides
) -> None:
    """All ways in turns, the first of a round last in the next."""
    for side in sides.values():
        side["samples_ms"] = []
    turns = list(steps.items())
    for _ in range(rounds):
        for way, step in turns:
            switch.set(way)
            sides[way]["samples_ms"].append(_time_ms(network, step, scale, device))
        turns.reverse()
    for side in sides.values():
        side["median_ms"] = round(statistics.median(side["samples_ms"]), 4)


def labels_of(name: str, mode: str, device: str, images: Any = None) -> dict[str, Any]:
    """What a row begins with."""
    model = MODELS[name]
    given = images or getattr(model, device)
    return {"model": name, "package": model.package, "mode": mode, "device": device, **vars(given)}


def _measure_model(
    name: str, mode: str, wanted: Sequence[tuple[str, str]], device: str, rounds: int, images: Any, gate: Gate
) -> Iterator[dict[str, Any]]:
    model = MODELS[name]
    labels = labels_of(name, mode, device, images)
    try:
        network, pixels = prepare(model, device, images or getattr(model, device))
        switch = Switch(model.package)
    except Exception as error:
        # One model that cannot be built takes nothing from the others.
        missing = not model.is_installed()
        reason = f"{model.package} is not installed" if missing else f"{type(error).__name__}: {error}"
        for work, dtype in wanted:
            yield {**labels, "pass": work, "dtype": dtype, "left_out": reason, "is_fault": not missing}
        return
    exact: dict[str, Results] = {}
    try:
        for work, dtype in wanted:
            if work not in exact:
                switch.set(BEFORE)
                network.zero_grad()
                exact = {work: results(network, make_step(model, network, pixels, work, "f32")(1.0), 1.0)}
            row = {**labels, "pass": work, "dtype": dtype}
            try:
                key = (mode, name, work, dtype)
                row |= _measure_one(key, model, network, pixels, switch, exact[work], rounds, gate)
            except LeftOut as why:
                row |= {"left_out": str(why), "is_fault": why.is_fault}
            network.zero_grad()
            yield row
    finally:
        switch.close()


def measure(
    device: str,
    modes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    rounds: int | None = None,
    done: Collection[Key] = (),
    images: Any = None,
    passes: Sequence[str] | None = None,
    formats: Sequence[str] | None = None,
    gate: Gate = lambda: None,
) -> Iterator[dict[str, Any]]:
    """One row per mode, model, pass and format, with every sample, without what is `done`.

    Mode by mode, the one that takes longest last.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU; --device cpu measures the CPU")
    for mode in modes or MODES[device]:
        for name in names or MODELS:
            pairs = plan(device, mode, passes, formats)
            missing = [(work, dtype) for work, dtype in pairs if (mode, name, work, dtype) not in done]
            if missing:
                for row in _measure_model(name, mode, missing, device, rounds or ROUNDS[device], images, gate):
                    print(summary(row), flush=True)
                    yield row
                if device == "cuda":
                    torch.cuda.empty_cache()


def warm_up(name: str) -> None:
    """Steps of both patched ways in every format, to fill the cache of kernels."""
    model = MODELS[name]
    network, pixels = prepare(model, "cuda", model.cuda)
    switch = Switch(model.package)
    for way in switch.ways[1:]:
        switch.set(way)
        for dtype in EVERY_FORMAT:
            make_step(model, network, pixels, "training", dtype)(LOSS_SCALES[0])
            network.zero_grad()
    torch.cuda.synchronize()


def is_within_bounds(row: dict[str, Any]) -> bool:
    """Whether output and gradients are as close as they must be, if they can be compared at all."""
    if row.get("is_fault", False):
        return False
    if "left_out" in row or not row["is_comparable"]:
        return True
    pairs = [
        (side[f"{what}_error"], row[f"{what}_bound"])
        for side in (row, row.get(PLAIN, {}))
        for what in ("output", "gradient")
        if f"{what}_error" in side
    ]
    return all(error is not None and error <= bound for error, bound in pairs)


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    label = f"{row['model']:19} {row['mode']:8} {row['pass']:9} {row['dtype']:4}"
    verdict = "" if is_within_bounds(row) else "  FAILED"
    if "left_out" in row:
        return f"{label}  left out: {row['left_out']}{verdict}"
    if not row["is_comparable"]:
        verdict = "  not comparable: the unpatched model is not finite"
    ways = [way for way in WAYS if way in row or f"{way}_left_out" in row]

    def each(what: str, unit: str, digits: int = 0) -> str:
        values = [row.get(way, {}).get(what) for way in ways]
        if not any(value is not None for value in values):
            return ""
        return "  " + " -> ".join("-" if value is None else f"{value:.{digits}f}" for value in values) + f" {unit}"

    speedups = [f"{row[name]:.2f}x {words}" for name, words in SPOKEN.items() if name in row]
    errors = [
        f"{error:.1e}" if error is not None else "-" for error in (row["output_error"], row.get("gradient_error"))
    ]
    reasons = "".join(f"  {way} left out: {row[f'{way}_left_out']}" for way in ways if way not in row)
    return (
        f"{label}{each('median_ms', 'ms', 2)}  {', '.join(speedups)}"
        f"{each('peak_mib', 'MiB')}{each('kernels', 'kernels')}"
        f"  error {errors[0]}, of gradients {errors[1]}{reasons}{verdict}"
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What a page shows of them: graphs in one format, inference / training."""
    lines = ["| model | before | functions alone | whole layers | kernels |", "|---|---|---|---|---|"]
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if (row["mode"], row["dtype"]) == ("graph", "bf16") and all(way in row for way in WAYS):
            found.setdefault(row["model"], []).append(row)
    for name, passes in found.items():
        times = (" / ".join(f"{row[way]['median_ms']:.1f}" for row in passes) for way in WAYS)
        kernels = " / ".join(f"{row[BEFORE]['kernels']} -> {row[AFTER]['kernels']}" for row in passes)
        lines.append(f"| {name} | " + " | ".join((*times, kernels)) + " |")
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """Measures and prints; 1 if a result is out of its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(PLAN), default="cuda")
    add_options(parser)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), help="not all")
    parser.add_argument("--warm-up", metavar="MODEL", choices=tuple(MODELS), help="fill the cache, time nothing")
    parser.add_argument("--wait", action="store_true", help="for side_by_side.py: time when told on standard input")
    parser.add_argument("--table", type=Path, metavar="RECORD", help="of a python.json, measure nothing")
    arguments = parser.parse_args(given)
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text())["models"]), end="")
        return 0
    modes = arguments.modes or MODES[arguments.device]
    unknown = set(modes) - set(PLAN[arguments.device])
    if unknown:
        parser.error(f"no such mode on a processor: {', '.join(unknown)}")
    if arguments.warm_up:
        warm_up(arguments.warm_up)
        return 0
    options: dict[str, Any] = {"passes": arguments.passes, "formats": arguments.formats}
    if arguments.wait:
        import side_by_side

        for row in measure(
            arguments.device, modes, arguments.models, arguments.rounds, gate=side_by_side.say_ready, **options
        ):
            side_by_side.say_row(row)
        return 0
    rows = list(measure(arguments.device, modes, arguments.models, arguments.rounds, **options))
    return 0 if all(map(is_within_bounds, rows)) else 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which rows, and how often."""
    parser.add_argument("--modes", nargs="+", choices=tuple(PLAN["cuda"]), help="all on a GPU, eager on a processor")
    parser.add_argument("--passes", nargs="+", choices=PASSES, help="instead of those that a mode usually has")
    parser.add_argument("--formats", nargs="+", choices=EVERY_FORMAT, help="instead of those that a mode usually has")
    parser.add_argument("--rounds", type=int, help="passes of each way")


if __name__ == "__main__":
    sys.exit(main())
