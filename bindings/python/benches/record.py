"""Runs the GPU tests, the host cost and the whole models on this machine and writes a record of all three.

    python benches/record.py [--root records] [--commit REVISION] [--workers N] [--seconds N]
                             [--parts tests host_cost models]

The record is `<root>/<gpu>/<date>-<revision>-python/python.json`. It is written after every part and every row, so that
what was measured is kept whatever happens to the rest; another run with the same revision adds what is missing. With
`--workers` the tests are shared out to so many processes (needs pytest-xdist) while others compile the kernels of the
models; what is timed runs alone in any case. With `--seconds` nothing new is begun after so long, and the tests are
broken off when they have had half of it.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import host_cost
import models
import msdeform
import torch

PACKAGE = Path(__file__).resolve().parents[1]
SCHEMA = 1
PARTS = ("tests", "host_cost", "models")
OUTCOMES = ("PASSED", "FAILED", "ERROR", "SKIPPED")
# How long models may go on compiling after the tests.
WARM_UP_S = 40.0


def run_tests(workers: int, limit_s: float | None) -> dict[str, Any]:
    """What pytest says about `tests/gpu`; what it said so far if it takes longer than it may."""
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


def start_warm_up() -> list[subprocess.Popen[bytes]]:
    """Processes that compile what the models need. The kernels of one model in one format take many seconds, alone."""
    program = str(Path(models.__file__).resolve())
    return [
        subprocess.Popen([sys.executable, program, "--warm-up", name, dtype], stdout=subprocess.DEVNULL)
        for name in models.MODELS
        for dtype in models.DTYPES
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


def revision(given: str | None) -> str:
    """The commit that is measured."""
    if given is not None:
        return given
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PACKAGE, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit("this is no checkout; say which revision it is with --commit")
    return found.stdout.strip()


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    import transformers

    cuda = msdeform.device_info()["cuda"]
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": cuda["driver"],
        "nvrtc": cuda["nvrtc"]["version"],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def main() -> int:
    """Measures, writes, says where; 1 if a test failed, a result is out of its bound or something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=PACKAGE.parents[1] / "records", help="folder of records")
    parser.add_argument("--commit", help="the revision, where there is no checkout to ask")
    parser.add_argument("--workers", type=int, default=1, help="processes for the tests")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so long")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    arguments = parser.parse_args()
    begin = time.monotonic()

    def is_late() -> bool:
        return arguments.seconds is not None and time.monotonic() - begin > arguments.seconds

    if not torch.cuda.is_available():
        raise SystemExit("a record needs a GPU, and PyTorch finds none")
    commit, date = revision(arguments.commit), datetime.datetime.now(datetime.timezone.utc)
    device = torch.cuda.get_device_name(0).lower().removeprefix("nvidia ").replace(" ", "-")
    folder = arguments.root / device / f"{date:%Y-%m-%d}-{commit[:7]}-python"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "python.json"
    earlier: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    record: dict[str, Any] = {
        **{part: earlier[part] for part in PARTS if part in earlier},
        "schema": SCHEMA,
        "date": f"{date:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit,
        "command": "python benches/record.py",
        "environment": environment(),
    }

    def write() -> None:
        pending = folder / ".python.json"
        pending.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
        pending.replace(file)

    def measure_tests() -> None:
        limit_s = None if arguments.seconds is None else arguments.seconds / 2
        record["tests"] = run_tests(arguments.workers, limit_s)

    def measure_host_cost() -> None:
        record["host_cost"] = host_cost.measure()

    def measure_models() -> None:
        rows: list[dict[str, Any]] = record.get("models", [])
        formats = collections.Counter((row["model"], row["pass"]) for row in rows)
        done = {key for key, count in formats.items() if count == len(models.DTYPES)}
        record["models"] = [row for row in rows if (row["model"], row["pass"]) in done]
        for row in models.measure(done):
            record["models"].append(row)
            write()
            if is_late():
                record["broke_off"] = f"models: {arguments.seconds:.0f} s were over"
                return

    measures = {"tests": measure_tests, "host_cost": measure_host_cost, "models": measure_models}
    is_complete = True
    warming = start_warm_up() if arguments.workers > 1 and "models" in arguments.parts else []
    for part in (part for part in PARTS if part in arguments.parts):
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
    return 0 if is_complete and failed == 0 and all(map(models.is_within_bounds, record.get("models", []))) else 1


if __name__ == "__main__":
    sys.exit(main())
