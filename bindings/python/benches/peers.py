"""Measures msdeform next to deformops on a GPU, and keeps `records/<device>/peers.csv`.

    python benches/peers.py --record records/h200/peers.csv          # measures, and replaces the rows it measured
    python benches/peers.py --quick --only ddetr_enc --dtypes f32    # a look, without a record
    python benches/peers.py --import TABLE.csv --record FILE         # takes rows from a table of an earlier run

It needs PyTorch 2.11, Triton, the wheel of msdeform, and deformops. The CUDA backend of deformops also needs nvcc and
ninja. Both packages may be unpacked wheels on PYTHONPATH. All peers of a case run in turns in one process, a worker
(`peer_calls.py`). The record is written after every case. If a worker does not finish a case in `--limit` seconds, it
is ended, and the case runs again without the peer that was running. After `--seconds` no new case begins. The end lists
all failures. The exit code is 1 if nothing was measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from peer_rows import MESSAGE, OURS, Case, PeerFile, Row, import_rows, without_folders

WORKLOADS = Path(__file__).resolve().parents[3] / "crates/msdeform-lab/workloads"
WORKER = Path(__file__).resolve().with_name("peer_calls.py")
TRITON, CUDA = "deformops-triton", "deformops-cuda"
DEFAULT_PEERS = (OURS, TRITON, CUDA)
NAMES = ("ddetr_enc", "ddetr_dec", "dino_dec", "rtdetr_dec", "m2f_enc", "bevformer_sca", "bevformer_tsa", "seed_6x8")
# With locations anywhere in the image; the others are compared with local ones alone.
UNIFORM = ("seed_6x8",)
DTYPES = ("f32", "f16", "bf16")
RUNS, QUICK_RUNS = 20, 5
# Seconds for a case, for compiling the CUDA backend, and for a worker to import what it needs.
LIMIT_S, BUILD_S, START_S = 90.0, 240.0, 120.0
# A peer that hung or crashed so often is not tried again.
MOST_FAULTS = 2


def plan(names: Sequence[str], dtypes: Sequence[str], peers: Sequence[str], kinds: Sequence[str]) -> list[Case]:
    """The cases, those first that documents need most."""
    local = [(name, "local", dtype) for dtype in dtypes for name in names]
    uniform = [(name, "uniform", dtype) for dtype in dtypes for name in names if name in UNIFORM]
    return [Case(*case, peers=tuple(peers)) for case in [*local, *uniform] if case[1] in kinds]


def environment() -> dict[str, str]:
    """Of workers: deformops compiles its CUDA backend, and nothing of ours is compiled while something is timed."""
    return {
        **os.environ,
        "DEFORMOPS_COMPILE": os.environ.get("DEFORMOPS_COMPILE", "1"),
        "DEFORMOPS_DOWNLOAD": "0",
        "DEFORMOPS_FALLBACK_WARNINGS": "0",
        "MSDEFORM_COMPILE_AHEAD": "off",
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
    }


class Worker:
    """A process that reports its progress line by line."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment(),
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # What it printed besides messages, for a crash.
        self.tail: list[str] = []

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def next(self, limit_s: float) -> dict[str, Any] | None:
        """The next message, nothing if the process is over. Raises `TimeoutError` if there is none in time."""
        end = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if line is None:
                self._process.wait()
                return None
            if line.startswith(MESSAGE):
                message: dict[str, Any] = json.loads(line.removeprefix(MESSAGE))
                return message
            self.tail = [*self.tail, line][-15:]

    @property
    def exit_code(self) -> int | None:
        """As subprocess has it."""
        return self._process.poll()

    def end(self) -> None:
        """Ends the process and those that it started, such as compilers; leaves nothing behind."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5.0)


@dataclass
class Run:
    """What is measured, what came of it, and when to stop."""

    cases: list[Case]
    folder: Path
    device: str
    runs: int
    limit_s: float
    end: float
    # Called with the rows of every finished case and the versions of what was measured.
    keep: Callable[[list[Row], str], None]
    rows: int = 0
    failures: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    versions: str = ""

    def seconds_left(self) -> float:
        """Until nothing is begun any more."""
        return self.end - time.monotonic()

    def fail(self, what: str) -> None:
        """Notes a failure and goes on."""
        print(f"FAILED {what}", flush=True)
        self.failures.append(what)

    def build(self, limit_s: float) -> None:
        """Compiles the CUDA backend. If that fails, its peer is left out."""
        start = time.monotonic()
        worker = Worker(["build"])
        try:
            is_built = worker.next(min(limit_s, max(0.0, self.seconds_left()))) == {"built": True}
            reason = f"ended with {worker.exit_code}: {' / '.join(worker.tail[-4:])[-400:]}"
        except TimeoutError:
            is_built, reason = False, f"not done after {limit_s:.0f} s"
        finally:
            worker.end()
        if is_built:
            print(f"{CUDA}: compiled in {time.monotonic() - start:.0f} s", flush=True)
            return
        self.fail(f"{CUDA}, compiling: {reason}")
        self.leave_out(CUDA)

    def leave_out(self, peer: str) -> None:
        """Measures everything else."""
        self.cases = [replace(case, peers=tuple(name for name in case.peers if name != peer)) for case in self.cases]
        self.cases = [case for case in self.cases if case.peers]

    def measure(self) -> None:
        """All cases, by as many workers as it takes."""
        while self.cases:
            if self.seconds_left() <= 0:
                self.fail(f"out of time: {len(self.cases)} cases from {self.cases[0]} on were not begun")
                return
            given = {"folder": str(self.folder), "device": self.device, "runs": self.runs}
            given["cases"] = [asdict(case) for case in self.cases]
            worker = Worker([json.dumps(given)])
            try:
                self._follow(worker)
            finally:
                worker.end()

    def _follow(self, worker: Worker) -> None:
        """Until all is done or the worker has to be replaced; `self.cases` is what is left then."""
        todo, at_work = self.cases, None
        rows: list[Row] = []
        # Nothing has begun yet: imports, the first use of the GPU.
        end, started = time.monotonic() + START_S, time.monotonic()
        index = -1
        while True:
            try:
                message = worker.next(min(end - time.monotonic(), max(0.0, self.seconds_left()) + self.limit_s))
            except TimeoutError:
                self._replace(todo, index, at_work, f"not done after {time.monotonic() - started:.0f} s")
                return
            if message is None:
                tail = " / ".join(worker.tail[-4:])[-400:]
                self._replace(todo, index, at_work, f"the worker ended with {worker.exit_code}: {tail}")
                return
            if "versions" in message:
                self.versions = message["versions"]
            elif "case" in message or "done" in message:
                if index >= 0:
                    self._finish(todo[index], rows, time.monotonic() - started)
                index, rows, at_work = message.get("case", len(todo)), [], None
                self.cases = todo[index:]
                started = time.monotonic()
                end = started + self.limit_s
                if "done" in message or self.seconds_left() <= 0:
                    return
            elif "step" in message:
                at_work = message["peer"]
            elif "failed" in message:
                self.fail(f"{todo[index]}, {message['peer'] or 'all peers'}, {message['failed']}: {message['reason']}")
            elif "row" in message:
                rows.append(message["row"])

    def _finish(self, case: Case, rows: list[Row], seconds: float) -> None:
        self.rows += len(rows)
        for row in rows:
            print(summary(row), flush=True)
        print(f"  {case}: {seconds:.1f} s", flush=True)
        if rows:
            self.keep(rows, self.versions)

    def _replace(self, todo: list[Case], index: int, peer: str | None, reason: str) -> None:
        """Decides what another worker begins with."""
        if index < 0:
            self.fail(f"all cases: {reason}")
            self.cases = []
            return
        case = todo[index]
        self.fail(f"{case}, {peer or 'all peers'}: {reason}")
        others = tuple(name for name in case.peers if name != peer)
        again = [replace(case, peers=others)] if peer is not None and others else []
        self.cases = [*again, *todo[index + 1 :]]
        if peer is not None:
            self.faults[peer] = self.faults.get(peer, 0) + 1
            if self.faults[peer] >= MOST_FAULTS and peer != OURS:
                self.fail(f"{peer}: not tried again after {MOST_FAULTS} faults")
                self.leave_out(peer)


def summary(row: Row) -> str:
    """A row for people."""
    names = ("peer", "workload", "locations", "dtype")
    times = f"{row['forward_us']} / {row['backward_us']} us"
    if row["forward_graph_us"]:
        times += f", graph {row['forward_graph_us']} / {row['backward_graph_us']} us"
    columns = ("error_output", "error_value", "error_locations_away", "error_weights")
    errors = " ".join(row[column] or "-" for column in columns)
    return f"{' '.join(row[name] for name in names)}: {times}, {row['backward_memory_mib'] or '-'} MiB, errors {errors}"


def built_from() -> str:
    """The commit that the wheel of msdeform was built from."""
    import msdeform

    build = msdeform.device_info()["build"]
    return build["commit"] + ("-dirty" if build["dirty"] else "")


def recorder(path: Path | None, command: str) -> Callable[[list[Row], str], None]:
    """Puts rows into the file, all under one run."""
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    descriptions: list[str] = []

    def keep(rows: list[Row], versions: str) -> None:
        if path is None:
            return
        file = PeerFile.read(path)
        if not descriptions:
            descriptions.append(f"{date}, {versions}, commit {built_from()}, by {without_folders(command)}")
        known = next((name for name, text in file.runs.items() if text == descriptions[0]), None)
        run = known or file.begin_run(descriptions[0])
        file.replace(row | {"run": run} for row in rows)
        file.write(path)

    return keep


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="the peers.csv to write into")
    parser.add_argument("--import", dest="table", type=Path, metavar="TABLE", help="take rows from here")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="WORKLOAD")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--locations", nargs="+", choices=("local", "uniform"), default=["local", "uniform"])
    parser.add_argument("--peers", nargs="+", default=list(DEFAULT_PEERS), help="also deformops-auto, grid_sample")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs of each call instead of {RUNS}")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a case")
    parser.add_argument("--build-limit", type=float, default=BUILD_S, help="seconds to compile the CUDA backend")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after that")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workloads", type=Path, default=WORKLOADS, help="the folder of the workloads' files")
    given = parser.parse_args(arguments)
    if given.table is not None and given.record is None:
        parser.error("--import needs --record FILE")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code."""
    given = parse(arguments)
    if given.table is not None:
        file = PeerFile.read(given.record)
        rows = import_rows(given.table, file)
        file.write(given.record)
        print(f"{len(rows)} rows of {given.table.name} are in {given.record}")
        return 0
    words = sys.argv[1:] if arguments is None else arguments
    run = Run(
        cases=plan(given.only, given.dtypes, given.peers, given.locations),
        folder=given.workloads,
        device=given.device,
        runs=QUICK_RUNS if given.quick else RUNS,
        limit_s=given.limit,
        end=time.monotonic() + given.seconds,
        keep=recorder(given.record, " ".join(["peers.py", *words])),
    )
    if given.device == "cuda" and CUDA in given.peers:
        run.build(given.build_limit)
    run.measure()
    print(f"{run.rows} rows measured, {len(run.failures)} failures")
    for failure in run.failures:
        print(f"  {failure}")
    return 0 if run.rows else 1


if __name__ == "__main__":
    sys.exit(main())
