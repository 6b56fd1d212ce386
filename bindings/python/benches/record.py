"""Runs the GPU tests and all benchmarks of the package on this machine, and writes a record.

    python benches/record.py [--root records] [--workers N] [--seconds N] [--device cuda|cpu]
                             [--parts tests host_cost cold_start chains models half_precision determinism]
                             [--modes eager graph compiled] [--models NAME ...] [--rounds N]
                             [--passes inference training] [--formats f32 f16 bf16] [--pack FILE]

The record is `<root>/<device>/<date>-<revision>-python/python.json`. The revision is the commit of the wheel.
On a CPU the record has no GPU tests. The record is written after every part and every row, so an interrupted run keeps
its results. Another run of the same revision adds missing parts. `runs` lists the runs, and the `run` of a row is its
place in that list. `--workers` is the number of processes for the tests (needs pytest-xdist), and the number of models
that compile at the same time. Timed code always runs alone. After `--seconds` nothing new begins, and the tests are
ended after half of that time.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chains
import cold_start
import determinism
import half_precision
import host_cost
import models
import msdeform
import side_by_side
import torch

PACKAGE = Path(__file__).resolve().parents[1]
SCHEMA = 1
PARTS = ("tests", "host_cost", "cold_start", "chains", "models", "half_precision", "determinism")
OUTCOMES = ("PASSED", "FAILED", "ERROR", "SKIPPED")
# How long kernels of models may go on compiling after the tests.
WARM_UP_S = 40.0
# Of mmdet the attention is mmcv's, which has two names on the package index.
PACKAGES = ("transformers", "ultralytics", "rfdetr", "libreyolo", "mmdet", "mmcv", "mmcv-lite")


def run_tests(workers: int, limit_s: float | None) -> dict[str, Any]:
    """The results of pytest for `tests/gpu`. If pytest exceeds its time, those that it had so far."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder) / "report.xml", Path(folder) / "log"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={report}", "tests/gpu"]
        command += ["-n", str(workers)] if workers > 1 else []
        broke_off = None
        with log.open("w") as to:
            try:
                subprocess.run(command, cwd=PACKAGE, check=False, stdout=to, stderr=subprocess.STDOUT, timeout=limit_s)
            except subprocess.TimeoutExpired:
                broke_off = f"not done after {limit_s:.0f} s"
        said = log.read_text()
        print(said[-8000:], flush=True)
        if not report.is_file():
            # Without a report there are its words, one line for each test.
            counts = {word.lower(): len(re.findall(rf"\b{word}\b.*::|::.*\b{word}\b", said)) for word in OUTCOMES}
            counts["failed"] += counts.pop("error")
            failures = re.findall(r"FAILED tests/gpu/\S+::(\S+)|tests/gpu/\S+::(\S+) FAILED", said)
            names = sorted({first or second for first, second in failures})
            return {**counts, "failures": names, "broke_off": broke_off or "pytest ended without a report"}
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))

    def total(attribute: str) -> int:
        return sum(int(suite.get(attribute, "0")) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    cases = [case for suite in suites for case in suite.iter("testcase")]
    return {
        "passed": total("tests") - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(sum(float(suite.get("time", "0")) for suite in suites), 1),
        "failures": [case.get("name") for case in cases if case.find("failure") is not None],
        "skips": [f"{case.get('name')}: {note.get('message')}" for case in cases for note in case.iter("skipped")],
    }


def start_warm_up(names: list[str]) -> list[subprocess.Popen[bytes]]:
    """Processes that compile what the models need. The kernels of one model in one format take many seconds, alone; one
    process has all formats of a model, for their memory."""
    program = str(Path(models.__file__).resolve())
    return [
        subprocess.Popen([sys.executable, program, "--warm-up", name], stdout=subprocess.DEVNULL)
        for name in names
        if models.MODELS[name].is_installed()
    ]


def end_warm_up(processes: list[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Waits for them, not for ever: what one has not compiled is compiled when it is needed."""
    end = time.monotonic() + limit_s
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def build() -> tuple[str, bool]:
    """The commit that the wheel was built from, and whether its sources differed from that commit."""
    found = msdeform.device_info()["build"]
    return found["commit"], found["dirty"]


def revision() -> str:
    """The commit of the wheel as folders name it."""
    commit, dirty = build()
    return commit[:7] + ("-dirty" if dirty else "")


def command_line(program: str, given: Sequence[str]) -> str:
    """The command as a record has it: without the folder that the record goes to."""
    kept = [word for before, word in zip(["", *given], given, strict=False) if "--root" not in (before, word)]
    return " ".join([f"python benches/{program}", *kept])


def sealed(text: str) -> str:
    """The text of a JSON record with its checksum, which readers compare (`crates/msdeform-files/src/seal.rs`)."""
    return f'{{"checksum": "sha256:{hashlib.sha256(text.encode()).hexdigest()}",{text[1:]}'


@functools.cache
def device_name(device: str) -> str:
    """The name of the device, as the GPU driver or the CPU benchmark reports it."""
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    return str(msdeform.bench("edge_one_pixel", device="cpu", seconds=0.01)["device"])


def slug(name: str) -> str:
    """A folder's name for a device: "h200", "epyc-genoa-2c"."""
    plain = re.sub(r"^(nvidia|amd|intel) | processor\b|[()]", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r", (\d+) cores?$", r"-\1c", plain)).strip("-")


def environment(device: str) -> dict[str, Any]:
    """What the numbers depend on."""
    cuda = msdeform.device_info()["cuda"]
    gpu = {"gpu": device_name(device), "driver": cuda["driver"], "nvrtc": cuda["nvrtc"]["version"]}
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        **(gpu if device == "cuda" else {"cpu": device_name(device), "threads": torch.get_num_threads()}),
        "torch": torch.__version__,
        **found,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        # Other work on the machine. If the load is high, CPU times mean little.
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def as_text(record: dict[str, Any]) -> str:
    """A line for each row and for everything else: samples take little room, and a difference shows what changed."""

    def text(value: Any) -> str:
        return json.dumps(value, allow_nan=False)

    def lines(value: Any) -> str:
        return "[\n" + ",\n".join(map(text, value)) + "\n]" if isinstance(value, list) else text(value)

    return "{\n" + ",\n".join(f"{text(name)}: {lines(value)}" for name, value in record.items()) + "\n}\n"


def main(given: Sequence[str] | None = None) -> int:
    """Runs the command. The exit code is 1 if a test failed, a result exceeds its bound or a part is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=PACKAGE.parents[1] / "records", help="folder of records")
    parser.add_argument("--workers", type=int, default=1, help="processes for the tests")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so long")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="what to measure")
    parser.add_argument("--device", choices=tuple(models.PLAN), default="cuda")
    parser.add_argument("--models", nargs="+", choices=tuple(models.MODELS), default=list(models.MODELS))
    models.add_options(parser)
    parser.add_argument("--pack", type=Path, metavar="FILE", help="first calls with this kernel pack as well")
    arguments = parser.parse_args(given)
    on_gpu = arguments.device == "cuda"
    modes = arguments.modes or list(models.MODES[arguments.device])
    parts = arguments.parts or (PARTS if on_gpu else PARTS[1:])
    begin = time.monotonic()

    def is_late() -> bool:
        return arguments.seconds is not None and time.monotonic() - begin > arguments.seconds

    def seconds_left() -> float:
        return math.inf if arguments.seconds is None else begin + arguments.seconds - time.monotonic()

    if on_gpu and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU; --device cpu measures the CPU")
    (commit, dirty), date = build(), datetime.datetime.now(datetime.timezone.utc)
    folder = arguments.root / slug(device_name(arguments.device)) / f"{date:%Y-%m-%d}-{revision()}-python"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "python.json"
    earlier: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    run = {
        "date": f"{date:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit,
        "dirty": dirty,
        "command": command_line("record.py", sys.argv[1:] if given is None else given),
    }
    runs = [*earlier.get("runs", []), run]
    record: dict[str, Any] = {
        **{part: earlier[part] for part in PARTS if part in earlier},
        "schema": SCHEMA,
        **run,
        "runs": runs,
        # Another part may have needed a package that is not there now.
        "environment": {**earlier.get("environment", {}), **environment(arguments.device)},
    }

    def write() -> None:
        pending = folder / ".python.json"
        for part in parts:
            found = record.get(part, [])
            for row in found if isinstance(found, list) else [found]:
                row.setdefault("run", len(runs) - 1)
        pending.write_text(sealed(as_text(record)))
        pending.replace(file)

    def measure_tests() -> None:
        limit_s = None if arguments.seconds is None else arguments.seconds / 2
        record["tests"] = run_tests(arguments.workers, limit_s)

    def measure_host_cost() -> None:
        record["host_cost"] = host_cost.measure()

    def measure_cold_start() -> None:
        # Where nothing is compiled, no first call is slower.
        record["cold_start"] = []
        for row in cold_start.measure(pack=arguments.pack) if on_gpu else ():
            record["cold_start"].append(row)
            write()

    def measure_chains() -> None:
        record["chains"] = []
        for row in chains.measure() if on_gpu else ():
            record["chains"].append(row)
            write()

    def measure_models() -> None:
        rows = record.setdefault("models", [])
        done = {models.key_of(row) for row in rows}
        wanted = {
            (mode, name, *each)
            for mode in modes
            for name in arguments.models
            for each in models.plan(arguments.device, mode, arguments.passes, arguments.formats)
        }
        what: dict[str, Any] = {"rounds": arguments.rounds, "done": done}
        what |= {"passes": arguments.passes, "formats": arguments.formats}
        are_shared = arguments.workers > 1 and side_by_side.MODE in modes
        alone = [mode for mode in modes if not (are_shared and mode == side_by_side.MODE)]
        found = models.measure(arguments.device, alone, arguments.models, **what) if alone else iter(())
        if are_shared:
            others = side_by_side.measure(
                arguments.device, arguments.workers, arguments.models, seconds_left=seconds_left, **what
            )
            found = itertools.chain(found, others)
        for row in found:
            rows.append(row)
            write()
            print(f"models: {time.monotonic() - begin:.0f} s since the start", flush=True)
            if is_late():
                break
        if not wanted <= {models.key_of(row) for row in rows}:
            record["broke_off"] = f"models: {arguments.seconds} s were over"

    def measure_half_precision() -> None:
        record["half_precision"] = list(half_precision.measure(arguments.device))

    def measure_determinism() -> None:
        record["determinism"] = []
        for row in determinism.measure_in_process(arguments.device):
            record["determinism"].append(row)
            write()

    measures = {
        "tests": measure_tests,
        "host_cost": measure_host_cost,
        "cold_start": measure_cold_start,
        "chains": measure_chains,
        "models": measure_models,
        "half_precision": measure_half_precision,
        "determinism": measure_determinism,
    }
    is_complete = True
    is_warming = on_gpu and arguments.workers > 1 and "models" in parts
    warming = start_warm_up(arguments.models) if is_warming else []
    for part in (part for part in PARTS if part in parts):
        if part != "tests":
            end_warm_up(warming, WARM_UP_S)
        if is_late():
            record["broke_off"] = f"{part}: {arguments.seconds:.0f} s were over"
            break
        try:
            measures[part]()
        except Exception:
            # One part that breaks takes nothing from the others.
            is_complete = False
            record.setdefault("errors", {})[part] = traceback.format_exc()
            traceback.print_exc()
        write()
        print(f"{part}: {time.monotonic() - begin:.0f} s since the start", flush=True)
    write()
    print(folder)
    failed = record.get("tests", {}).get("failed", 0)
    is_complete = is_complete and "broke_off" not in record and "broke_off" not in record.get("tests", {})
    is_exact = all(map(models.is_within_bounds, record.get("models", [])))
    is_repeatable = all(map(determinism.is_as_promised, record.get("determinism", [])))
    return 0 if is_complete and failed == 0 and is_exact and is_repeatable else 1


if __name__ == "__main__":
    sys.exit(main())
