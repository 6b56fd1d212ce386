"""Runs every attention of a model in the runtimes of this machine, and compares it with the reference in float64."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from .._warm import show_progress
from ..functional import ms_deform_attn
from ._rewrite import _read
from ._runtimes import RUNTIMES, Runtime, Web

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMS = ("gridsample", "gather")
# The largest relative L2 error. That of float32 is the accuracy contract; in float16, runtimes add up in float16 too.
BOUNDS = {"f32": 1e-5, "f16": 5e-3}
_DTYPES = {"f32": np.float32, "f16": np.float16}
_RUNS = 5
_SECONDS = 1.0


@dataclass(frozen=True)
class CheckRow:
    """One site in one form, dtype and runtime.

    Attributes:
        site: the site's name in the output of `inspect`.
        form: how the site was written: `"gridsample"` or `"gather"`.
        dtype: the dtype of values, locations and weights: `"f32"` or `"f16"`.
        runtime: the runtime.
        version: the version of the runtime; `None` if it is not installed.
        error: the relative L2 error against the reference in float64, on the same inputs; `None` if it did not run.
        edge_error: the same with locations that are far outside, infinite or NaN, which must contribute nothing.
        ms: the shortest time of a call, in milliseconds.
        note: why it did not run, or how to install it.
        passed: whether `error` is within its bound; `None` if it did not run. `edge_error` is not judged.
    """

    site: str
    form: str
    dtype: str
    runtime: str
    version: str | None
    error: float | None
    edge_error: float | None
    ms: float | None
    note: str
    passed: bool | None


@dataclass(frozen=True)
class CheckReport:
    """The result of `check`.

    Attributes:
        rows: a row for each site, form, dtype and runtime, and one for each runtime that is not installed.
        left: sites that were not run, each with `node` and `reason`.
    """

    rows: list[CheckRow]
    left: list[dict[str, str]]

    @property
    def passed(self) -> bool:
        """Whether all that ran is within its bound."""
        return all(row.passed is not False for row in self.rows)

    def __str__(self) -> str:
        return "\n".join([*_table(self.rows), *(f"not run: {left['node']}: {left['reason']}" for left in self.left)])


def check(model: Any, runtimes: Sequence[str] | None = None, *, forms: Sequence[str] = FORMS) -> CheckReport:
    """Runs every attention of a model alone, in every form and runtime, and compares it with the reference.

    Each site becomes a small model of standard operators with its sizes. Its inputs are random, in float32
    and in float16. Open sizes become one image and 300 queries. Sites of the same sizes run once. If stderr is a
    terminal, a line shows the progress.

    Args:
        model: a path, bytes, or an `onnx.ModelProto`.
        runtimes: names of runtimes; without them all, of which those that are not installed get a row that says so.
        forms: the forms to write: `"gridsample"`, `"gather"`, `"msdeform"`.
    """
    known = {runtime.name: runtime for runtime in RUNTIMES}
    for name in runtimes or []:
        if name not in known:
            raise ValueError(f"unknown runtime `{name}`; known: {', '.join(known)}")
    chosen = [known[name] for name in runtimes] if runtimes else RUNTIMES
    content = _read(model)
    written: dict[tuple[str, ...], list[tuple[bytes, str]]] = {}
    rows, left, cases = [], "[]", _Cases()
    for runtime in chosen:
        version = runtime.version()
        if version is None:
            note = f"not installed: {runtime.install}"
            rows.append(CheckRow("", "", "", runtime.name, None, None, None, None, note, None))
            continue
        spellings = tuple(runtime.spelling.get(form, form) for form in forms)
        if spellings not in written:
            written[spellings], left = _native.onnx_trials(content, list(spellings))
        rows += _rows(runtime, version, written[spellings], cases)
    show_progress("")
    return CheckReport(rows, json.loads(left))


class _Cases:
    """Inputs of trials and what the reference gives for them, the same for every runtime and form."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[dict[str, NDArray[Any]], NDArray[Any]]] = {}

    def of(self, trial: dict[str, Any], *, has_edges: bool) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        key = json.dumps([has_edges, *(trial[name] for name in ("dtype", "shapes", "levels", "points"))])
        if key not in self._known:
            inputs = _inputs(trial, has_edges=has_edges)
            self._known[key] = inputs, _expected(inputs, trial)
        return self._known[key]


def _rows(runtime: Runtime, version: str, trials: Sequence[tuple[bytes, str]], cases: _Cases) -> list[CheckRow]:
    """The rows of a runtime. Sites of the same sizes are the same model, which runs once."""
    rows: list[CheckRow] = []
    first: dict[bytes, CheckRow] = {}
    for model, described in trials:
        trial = json.loads(described)
        if model not in first:
            part = f"{len(rows) + 1} of {len(trials)}"
            show_progress(f"{runtime.name}: {part}, {trial['site']} as {trial['form']} in {trial['dtype']}")
            first[model] = _run(runtime, version, model, trial, cases)
        rows.append(replace(first[model], site=trial["site"]))
    return rows


def _run(runtime: Runtime, version: str, model: bytes, trial: dict[str, Any], cases: _Cases) -> CheckRow:
    start = (trial["site"], trial["form"], trial["dtype"], runtime.name, version)
    with ExitStack() as stack, np.errstate(all="ignore"):
        try:
            compute = runtime.load(model, stack)
            inputs, expected = cases.of(trial, has_edges=False)
            error = _error(compute(inputs), expected)
            ms = _time(compute, inputs)
            inputs, expected = cases.of(trial, has_edges=True)
            edge_error = _error(compute(inputs), expected)
        # A runtime may raise anything; the row tells.
        except Exception as reason:
            lines = str(reason).strip().splitlines() or [type(reason).__name__]
            return CheckRow(*start, None, None, None, f"does not run: {lines[0][:160]}", None)
    # Written so that NaN fails.
    return CheckRow(*start, error, edge_error, ms, "", bool(error <= BOUNDS[trial["dtype"]]))


def _inputs(trial: dict[str, Any], *, has_edges: bool) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    value, locations, weights = (
        random.uniform(low, high, shape)
        for shape, (low, high) in zip(trial["shapes"], ((-1.0, 1.0), (-0.2, 1.2), (0.0, 1.0)), strict=True)
    )
    weights /= weights.sum(-1, keepdims=True)
    if has_edges:
        flat = locations.reshape(-1)
        for edge, step in ((np.nan, 31), (np.inf, 37), (-np.inf, 41), (6e4, 43), (-6e4, 47), (1.0, 7), (0.0, 11)):
            flat[::step] = edge
    dtype = _DTYPES[trial["dtype"]]
    return {"value": value.astype(dtype), "locations": locations.astype(dtype), "weights": weights.astype(dtype)}


def _expected(inputs: dict[str, NDArray[Any]], trial: dict[str, Any]) -> NDArray[Any]:
    value, locations, weights = (array.astype(np.float64) for array in inputs.values())
    found: NDArray[Any] = ms_deform_attn(
        value,
        [(height, width) for height, width, _ in trial["levels"]],
        [start for _, _, start in trial["levels"]],
        locations,
        weights,
        points=trial["points"],
    )
    return found


def _error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The relative L2 error."""
    if found.size != expected.size:
        raise ValueError(f"its output has the shape {list(found.shape)} instead of {list(expected.shape)}")
    difference = found.astype(np.float64).reshape(expected.shape) - expected
    return float(np.linalg.norm(difference) / max(np.linalg.norm(expected), 1e-30))


def _time(compute: Any, inputs: dict[str, NDArray[Any]]) -> float:
    """The shortest time of a call. A runtime in another process measures itself."""
    if isinstance(compute, Web):
        return compute.ms
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < _RUNS and time.perf_counter() - start < _SECONDS:
        before = time.perf_counter()
        compute(inputs)
        times.append(time.perf_counter() - before)
    return min(times) * 1e3


def _table(rows: list[CheckRow]) -> list[str]:
    """A line for each result. Sites that share it, because they have the same sizes, are counted after the first."""
    heading = ("site", "form", "dtype", "runtime", "version", "error", "edges", "ms", "")
    sites: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        sites.setdefault(_cells(row), []).append(row.site)
    names = [f"{first} and {len(more)} more" if more else first for first, *more in sites.values()]
    cells = [heading, *((name, *line) for name, line in zip(names, sites, strict=True))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heading) - 1)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in cells
    ]


def _cells(row: CheckRow) -> tuple[str, ...]:
    figures = ("" if x is None else f"{x:.1e}" for x in (row.error, row.edge_error))
    ms = "" if row.ms is None else f"{row.ms:.2f}"
    verdict = row.note or ("ok" if row.passed else "DIFFERS")
    return (row.form, row.dtype, row.runtime, row.version or "", *figures, ms, verdict)


@contextmanager
def _stdout_apart() -> Iterator[None]:
    """Sends to stderr what libraries print, so that stdout has the report alone. MNN prints a line."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        if os.name == "posix":
            # The buffers of C would be written later.
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def main(arguments: list[str] | None = None) -> int:
    """`python -m msdeform.onnx check`; `msdeform onnx check` calls it."""
    parser = argparse.ArgumentParser(
        prog="python -m msdeform.onnx check",
        description="Runs every attention of a model in the runtimes that are installed.",
        epilog="Exit code: 0 if all that ran is within its bound, 1 if a result differs, 2 for a wrong option, 3 if "
        "the file cannot be read or nothing ran.",
    )
    names = [runtime.name for runtime in RUNTIMES]
    parser.add_argument("model", type=Path, help="the model")
    parser.add_argument("--runtime", action="append", choices=names, help="a runtime; may be given several times")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        with _stdout_apart():
            report = check(options.model, options.runtime)
    except (OSError, ValueError) as error:
        print(f"error: {options.model}: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in report.rows], "left": report.left, "passed": report.passed}))
    else:
        print(report)
    if all(row.passed is None for row in report.rows):
        reason = "the model has no attention whose sizes are known, or no installed runtime runs it"
        print(f"error: {options.model}: nothing was compared, because {reason}", file=sys.stderr)
        return 3
    return 0 if report.passed else 1
