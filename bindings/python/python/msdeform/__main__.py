"""`python -m msdeform`: lists the devices of this machine, checks results and times calls."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from ._first_look import checks, machine, times
from ._warm import show_progress


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. The exit code is 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m msdeform",
        description="Lists the devices of this machine, checks every dtype against float64, and times calls.",
        epilog="Exit code: 0 if every check passed, 1 if one failed, 2 for a wrong option.",
    )
    parser.add_argument("--device", help="use only the CPU (cpu) or one GPU (cuda:0)")
    parser.add_argument("--no-times", action="store_true", help="leave the table of times out")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    options = parser.parse_args(arguments)
    found = machine.look()
    if options.device and options.device not in ["cpu", *machine.gpus(found)]:
        parser.error(f"{options.device} cannot be used here; known: {', '.join(['cpu', *machine.gpus(found)])}")
    report = _report(found, options)
    if options.json:
        print(json.dumps(report, indent=2))
    return 0 if report["passed"] else 1


def _report(found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    say = _silent if options.json else print
    say("\n".join(machine.lines(found)))
    wanted = [options.device] if options.device else ["cpu", *machine.gpus(found)]
    torch, _ = machine.import_torch()
    torch_gpus = [f"cuda:{number}" for number in range(found["torch"]["sees_gpus"])]
    results = _check(torch, wanted, torch_gpus, say)
    rows: list[dict[str, Any]] = []
    if not options.no_times:
        # Only devices whose results are right. A GPU also needs PyTorch.
        wrong = {result["device"] for result in results if not result["passed"]}
        timed = [device for device in wanted if device not in wrong and (device == "cpu" or device in torch_gpus)]
        rows = _time(torch, timed, start, say)
    advice, passed = machine.advice(found), all(result["passed"] for result in results)
    failed = sum(not result["passed"] for result in results)
    say()
    for line in advice:
        say(f"to do: {line}")
    verdict = f"{len(results)} checks passed" if passed else f"{failed} of {len(results)} checks FAILED"
    say(f"{verdict}, in {time.perf_counter() - start:.1f} s")
    if advice or not passed:
        say(f"more: {machine.PAGE}")
    return {"machine": found, "checks": results, "times": rows, "advice": advice, "passed": passed}


def _check(torch: Any, wanted: list[str], torch_gpus: list[str], say: Any) -> list[dict[str, Any]]:
    """Runs every check of the wanted devices, a line for each device and kind."""
    gpus = [device for device in wanted if device != "cpu"]
    listed = list(checks.all_checks(torch, gpus, [gpu for gpu in torch_gpus if gpu in gpus]))
    listed = [check for check in listed if check[0] in wanted]
    say(f"\n{'relative L2 error against float64':<36} {'f32':>9} {'f16':>9} {'bf16':>9}")
    results: list[dict[str, Any]] = []
    kinds = list(dict.fromkeys((device, what) for device, what, _, _ in listed))
    for device, what in kinds:
        cells, errors = dict.fromkeys(checks.BOUNDS, "-"), []
        for _, _, dtype, call in (check for check in listed if check[:2] == (device, what)):
            show_progress(f"{device}, {what}, {dtype}: check {len(results) + 1} of {len(listed)}")
            result = _run(device, what, dtype, call)
            results.append(result)
            bad = "" if result["passed"] else " FAILED"
            cells[dtype] = ("error" if result["error"] else f"{result['rel_l2']:.1e}") + bad
            errors += [result["error"]] if result["error"] else []
        show_progress("")
        say(f"{f'{device}, {what}':<36} " + " ".join(f"{cell:>9}" for cell in cells.values()))
        for error in dict.fromkeys(errors):
            say(f"  {error}")
    say(f"{'at most':<36} " + " ".join(f"{bound:>9.0e}" for bound in checks.BOUNDS.values()))
    if torch is None:
        say("gradients and calls from offsets on your own tensors need PyTorch")
    return results


def _run(device: str, what: str, dtype: str, call: Any) -> dict[str, Any]:
    rel_l2, error, bound = float("nan"), None, checks.BOUNDS[dtype]
    try:
        rel_l2 = call()
    except Exception as raised:
        # The user must see every error, and the results of the other checks.
        error = f"{type(raised).__name__}: {raised}"
    # NaN exceeds every bound, and JSON cannot represent it.
    passed = error is None and rel_l2 <= bound
    shown = rel_l2 if rel_l2 == rel_l2 else None
    if error is None and shown is None:
        error = "the result is not a number"
    found = {"device": device, "what": what, "dtype": dtype, "rel_l2": shown, "bound": bound}
    return {**found, "passed": passed, "error": error}


def _time(torch: Any, devices: list[str], start: float, say: Any) -> list[dict[str, Any]]:
    """Prints each row of the table as soon as it is measured."""
    has_torch = torch is not None
    training = f" {'training':>9}" if has_torch else ""
    grid_sample = f"  {'grid_sample':>11} {'training':>9} {'faster':>14}" if has_torch else ""
    say(f"\n{'milliseconds, from Python':<36} {'forward':>9}{training}{grid_sample}")
    rows: list[dict[str, Any]] = []
    show_progress("timing, row 1")
    for row in times.rows(torch, devices, start):
        show_progress("")
        rows.append(row)
        line = f"{row['device'] + ', ' + row['workload'] + ', ' + row['dtype']:<36} {_ms(row['forward_ms']):>9}"
        if has_torch:
            faster = " / ".join(_ratio(row, part) for part in ("forward_ms", "training_ms"))
            line += f" {_ms(row['training_ms']):>9}  {_ms(row['grid_sample_forward_ms']):>11}"
            line += f" {_ms(row['grid_sample_training_ms']):>9} {faster:>14}"
        say(line)
        show_progress(f"timing, row {len(rows) + 1}")
    show_progress("")
    return rows


def _ms(time_ms: float | None) -> str:
    if time_ms is None:
        return "-"
    return f"{time_ms:.0f}" if time_ms >= 100 else f"{time_ms:.3g}"


def _ratio(row: dict[str, Any], part: str) -> str:
    ours, theirs = row[part], row[f"grid_sample_{part}"]
    return "-" if ours is None or theirs is None else f"{theirs / ours:.1f}x"


def _silent(*_: object) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
