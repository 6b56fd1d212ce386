"""Runs the GPU tests, the host cost and the whole models on this machine and writes a record of all three.

    python benches/record.py [--root records] [--commit REVISION] [--workers N] [--parts tests host_cost models]

The record is `<root>/<gpu>/<date>-<revision>-python/python.json`; parts may be measured one at a time and add up. With
`--workers` the tests are shared out to so many processes (needs pytest-xdist); what is timed runs alone in any case.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
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


def run_tests(workers: int) -> dict[str, Any]:
    """What pytest says about `tests/gpu`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "tests/gpu"]
        command += ["-n", str(workers)] if workers > 1 else []
        subprocess.run(command, cwd=PACKAGE, check=False)
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
    """Measures, writes, says where; 1 if a test failed or a result is out of its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=PACKAGE.parents[1] / "records", help="folder of records")
    parser.add_argument("--commit", help="the revision, where there is no checkout to ask")
    parser.add_argument("--workers", type=int, default=1, help="processes for the tests")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    arguments = parser.parse_args()
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
        # After every part: what was measured is kept whatever happens to the rest.
        pending = folder / ".python.json"
        pending.write_text(json.dumps(record, indent=2) + "\n")
        pending.replace(file)

    if "tests" in arguments.parts:
        record["tests"] = run_tests(arguments.workers)
        write()
    if "host_cost" in arguments.parts:
        record["host_cost"] = host_cost.measure()
        write()
    if "models" in arguments.parts:
        record["models"] = []
        for row in models.measure():
            record["models"].append(row)
            write()
    print(folder)
    failed = record.get("tests", {}).get("failed", 0)
    return 0 if failed == 0 and all(map(models.is_within_bounds, record.get("models", []))) else 1


if __name__ == "__main__":
    sys.exit(main())
