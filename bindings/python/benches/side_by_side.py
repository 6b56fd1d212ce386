"""Compiles models in parallel and times them one after the other, because compilation takes minutes.

Each row has a process, `models.py --wait`, which compiles all ways, reports that it is ready, and waits. When no
process compiles any more, they continue one by one, so that nothing else runs during a timed pass.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import models

MODE = "compiled"
READY, ROW = "ready", "row "
# How long all ways of one row may take to compile, and what is compiled to be timed.
LIMIT_S, TIMING_S = 1200.0, 120.0


def say_ready() -> None:
    """In a process of a row: reports that it is ready, and waits until no other process computes."""
    print(READY, flush=True)
    sys.stdin.readline()


def say_row(row: dict[str, Any]) -> None:
    """In a process of a row: its result."""
    print(f"{ROW}{json.dumps(row)}", flush=True)


class _Process:
    """One row in the making."""

    def __init__(self, key: models.Key, device: str, rounds: int | None, threads: int) -> None:
        self.key, self.device = key, device
        self.row: dict[str, Any] | None = None
        self._is_quiet = threading.Event()
        mode, name, work, dtype = key
        command = [sys.executable, str(Path(models.__file__).resolve()), "--wait", "--device", device]
        command += ["--modes", mode, "--models", name, "--passes", work, "--formats", dtype]
        command += [] if rounds is None else ["--rounds", str(rounds)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ROW):
                self.row = json.loads(line.removeprefix(ROW))
            elif line.strip() == READY:
                self._is_quiet.set()
        self._is_quiet.set()

    def wait(self, limit_s: float) -> None:
        """Until it is ready, or over."""
        if not self._is_quiet.wait(max(0.0, limit_s)):
            self.end()

    def finish(self) -> dict[str, Any]:
        """Lets it measure; its row, or why there is none."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # It is over already, or will not end.
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._process.wait(TIMING_S)
        self.end()
        if self.row is not None:
            return self.row
        mode, name, work, dtype = self.key
        reason = f"its process ended with {self._process.returncode}, or was ended after {LIMIT_S:.0f} s"
        labels = models.labels_of(name, mode, self.device)
        return {**labels, "pass": work, "dtype": dtype, "left_out": reason, "is_fault": False}

    def end(self) -> None:
        """Leaves nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(5.0)


def measure(
    device: str,
    workers: int,
    names: Sequence[str],
    rounds: int | None = None,
    done: Collection[models.Key] = (),
    passes: Sequence[str] | None = None,
    formats: Sequence[str] | None = None,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[dict[str, Any]]:
    """The rows of `models.measure` in compiled mode, so many processes at a time, while there is time."""
    keys = [(MODE, name, work, dtype) for name in names for work, dtype in models.plan(device, MODE, passes, formats)]
    missing = [key for key in keys if key not in done]
    while missing:
        end = time.monotonic() + min(LIMIT_S, seconds_left())
        batch, missing = missing[:workers], missing[workers:]
        threads = max(1, (os.cpu_count() or 1) // len(batch))
        processes = [_Process(key, device, rounds, threads) for key in batch]
        try:
            for process in processes:
                process.wait(end - time.monotonic())
            for process in processes:
                row = process.finish()
                if process.row is None and seconds_left() <= 0:
                    return  # Another run may have more time.
                print(models.summary(row), flush=True)
                yield row
        finally:
            for process in processes:
                process.end()
