"""What the patch changes in whole models: time, kernels, peak memory, and how far the results move.

    python benches/models.py [--device cuda|cpu] [--modes eager graph compiled] [--models NAME ...] [--rounds N]

One model of each package (see `zoo`), with random weights so that nothing is downloaded. "Before" is what the package
does without a compiled kernel: `grid_sample` per level. Both take turns pass by pass, so that a machine that gets
slower slows down both; beside the medians stands the median of the ratios of neighbours. A mode in which a model cannot
be run is a row that says why.

On a GPU (with the wheel, torch, transformers, ultralytics and rfdetr installed), by `record.py`, which keeps the rows:

    python benches/record.py --root target/runs --parts models                      # about 15 minutes on an H200
    python benches/record.py --root target/runs --parts models --modes eager graph  # about 5: nothing is compiled
    python benches/record.py --root target/runs --parts models --workers 8          # compilers warm up side by side

Another run with the same revision adds what is missing, so that it can be done in pieces (`--seconds`). On a processor:

    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python benches/models.py --device cpu       # about 4 minutes on two idle cores

with smaller images, in float32 and bfloat16, eager unless `--modes` says otherwise. The variable is for virtual
machines that announce AMX and do not have it.

    python benches/models.py --warm-up Deformable-DETR

takes a step in every format, and compiles the model, to fill the caches on disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from modes import PLAN, LeftOut, make_steps
from passes import (
    LOSS_SCALES,
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
# Compiling for a processor takes minutes for each model.
MODES = {"cuda": tuple(PLAN["cuda"]), "cpu": ("eager",)}

# A mode, a model and a pass: what is measured in one go, in all its formats.
Key = tuple[str, str, str]
# What is known of the unpatched and of the patched way.
Sides = dict[bool, dict[str, Any]]


def key_of(row: dict[str, Any]) -> Key:
    """What a row belongs to; rows of old records have no mode."""
    return row.get("mode", "eager"), row["model"], row["pass"]


def is_whole(device: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether the rows of one key are all there."""
    return len(rows) == len(PLAN[device][rows[0].get("mode", "eager")][1])


def _time_ms(network: Any, step: Step, scale: float, device: str) -> float:
    network.zero_grad()
    synchronise(device)
    start = time.perf_counter()
    step(scale)
    synchronise(device)
    return round((time.perf_counter() - start) * 1e3, 4)


def _measure_one(
    key: Key, dtype: str, model: Model, network: Any, pixels: Tensor, switch: Switch, exact: Results, rounds: int
) -> dict[str, Any]:
    """What one row says beside its name."""
    mode, _, work = key
    device = pixels.device.type
    switch.set(False)
    scale, _ = find_loss_scale(network, make_step(model, network, pixels, work, dtype))
    steps = make_steps(mode, network, model, pixels, work, dtype, switch, scale)
    # What is compiled is not compiled again when the other way has had its turn.
    with torch._dynamo.config.patch(error_on_recompile=True):
        found, sides = _observe(mode, network, steps, switch, scale, device)
        _time(network, steps, switch, scale, device, rounds, sides)
    ratios = [
        before / after for before, after in zip(*(sides[way]["samples_ms"] for way in (False, True)), strict=True)
    ]
    return {
        "loss_scale": scale,
        **compare(found[True], found[False], exact, dtype),
        "speedup": round(statistics.median(ratios), 4),
        "before": sides[False],
        "after": sides[True],
    }


def _observe(
    mode: str, network: Any, steps: dict[bool, Step], switch: Switch, scale: float, device: str
) -> tuple[dict[bool, Results], Sides]:
    """Results, memory and kernels of both ways."""
    found: dict[bool, Results] = {}
    sides: Sides = {}
    for is_patched, step in steps.items():
        switch.set(is_patched)
        network.zero_grad()
        found[is_patched] = results(network, step(scale), scale)
        network.zero_grad()
        # A graph's memory was taken when it was captured.
        peak = None if mode == "graph" else round(peak_mib(device, lambda step=step: step(scale)), 1)
        network.zero_grad()
        kernels = count_kernels(lambda step=step: step(scale)) if device == "cuda" else None
        sides[is_patched] = {"peak_mib": peak, "kernels": kernels}
    return found, sides


def _time(
    network: Any, steps: dict[bool, Step], switch: Switch, scale: float, device: str, rounds: int, sides: Sides
) -> None:
    """Both ways in turns, the first of a round last in the next."""
    for side in sides.values():
        side["samples_ms"] = []
    turns = list(steps.items())
    for _ in range(rounds):
        for is_patched, step in turns:
            switch.set(is_patched)
            sides[is_patched]["samples_ms"].append(_time_ms(network, step, scale, device))
        turns.reverse()
    for side in sides.values():
        side["median_ms"] = round(statistics.median(side["samples_ms"]), 4)


def _measure_model(
    name: str, mode: str, passes: Sequence[str], device: str, rounds: int, images: Any
) -> Iterator[dict[str, Any]]:
    model = MODELS[name]
    formats = PLAN[device][mode][1]
    labels = {"model": name, "package": model.package, "mode": mode, "device": device, **vars(images)}
    try:
        network, pixels = prepare(model, device, images)
        switch = Switch(model.package)
    except Exception as error:
        # One model that cannot be built takes nothing from the others.
        missing = not model.is_installed()
        reason = f"{model.package} is not installed" if missing else f"{type(error).__name__}: {error}"
        for work in passes:
            for dtype in formats:
                yield {**labels, "pass": work, "dtype": dtype, "left_out": reason, "is_fault": not missing}
        return
    try:
        for work in passes:
            switch.set(False)
            network.zero_grad()
            exact = results(network, make_step(model, network, pixels, work, "f32")(1.0), 1.0)
            for dtype in formats:
                row = {**labels, "pass": work, "dtype": dtype}
                try:
                    row |= _measure_one((mode, name, work), dtype, model, network, pixels, switch, exact, rounds)
                except LeftOut as why:
                    row |= {"left_out": str(why), "is_fault": why.is_fault}
                yield row
            network.zero_grad()
    finally:
        switch.close()


def measure(
    device: str,
    modes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    rounds: int | None = None,
    done: Collection[Key] = (),
    images: Any = None,
) -> Iterator[dict[str, Any]]:
    """One row per mode, model, pass and format, with every sample, without what is `done`.

    Mode by mode, the one that takes longest last.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU; --device cpu measures the processor")
    for mode in modes or MODES[device]:
        for name in names or MODELS:
            missing = [work for work in PLAN[device][mode][0] if (mode, name, work) not in done]
            if missing:
                given = images or getattr(MODELS[name], device)
                for row in _measure_model(name, mode, missing, device, rounds or ROUNDS[device], given):
                    print(summary(row), flush=True)
                    yield row
                if device == "cuda":
                    torch.cuda.empty_cache()


def warm_up(name: str, modes: Sequence[str]) -> None:
    """Steps with the patch in every format, and the model compiled both ways."""
    model = MODELS[name]
    network, pixels = prepare(model, "cuda", model.cuda)
    switch = Switch(model.package)
    for dtype in PLAN["cuda"]["eager"][1]:
        make_step(model, network, pixels, "training", dtype)(LOSS_SCALES[0])
        network.zero_grad()
    if "compiled" in modes:
        for dtype in PLAN["cuda"]["compiled"][1]:
            make_steps("compiled", network, model, pixels, "inference", dtype, switch, LOSS_SCALES[0])
    torch.cuda.synchronize()


def is_within_bounds(row: dict[str, Any]) -> bool:
    """Whether output and gradients are as close as they must be, if they can be compared at all."""
    if "left_out" in row:
        return not row.get("is_fault", False)
    pairs = [(row["output_error"], row["output_bound"])]
    if "gradient_error" in row:
        pairs.append((row["gradient_error"], row["gradient_bound"]))
    return not row["is_comparable"] or all(error is not None and error <= bound for error, bound in pairs)


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    label = f"{row['model']:16} {row['mode']:8} {row['pass']:9} {row['dtype']:4}"
    verdict = "" if is_within_bounds(row) else "  FAILED"
    if "left_out" in row:
        return f"{label}  left out: {row['left_out']}{verdict}"
    if not row["is_comparable"]:
        verdict = "  not comparable: the unpatched model is not finite"

    def both(what: str, unit: str) -> str:
        values = [row[side][what] for side in ("before", "after")]
        return "" if None in values else f"  {values[0]:6.0f} -> {values[1]:6.0f} {unit}"

    errors = [
        f"{error:.1e}" if error is not None else "-" for error in (row["output_error"], row.get("gradient_error"))
    ]
    return (
        f"{label}  {row['before']['median_ms']:8.2f} -> {row['after']['median_ms']:8.2f} ms  {row['speedup']:5.2f}x"
        f"{both('peak_mib', 'MiB')}{both('kernels', 'kernels')}"
        f"  error {errors[0]}, of gradients {errors[1]}{verdict}"
    )


def main(given: Sequence[str] | None = None) -> int:
    """Measures and prints; 1 if a result is out of its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(PLAN), default="cuda")
    parser.add_argument("--modes", nargs="+", choices=tuple(PLAN["cuda"]), help="all on a GPU, eager on a processor")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), help="not all")
    parser.add_argument("--rounds", type=int, help="passes of each side")
    parser.add_argument("--warm-up", metavar="MODEL", choices=tuple(MODELS), help="fill the caches, time nothing")
    arguments = parser.parse_args(given)
    modes = arguments.modes or MODES[arguments.device]
    unknown = set(modes) - set(PLAN[arguments.device])
    if unknown:
        parser.error(f"no such mode on a processor: {', '.join(unknown)}")
    if arguments.warm_up:
        warm_up(arguments.warm_up, modes)
        return 0
    rows = list(measure(arguments.device, modes, arguments.models, arguments.rounds))
    return 0 if all(map(is_within_bounds, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
