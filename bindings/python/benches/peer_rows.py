"""The file `records/<device>/peers.csv`: other implementations, and msdeform as it ran next to them.

`peers.py` writes it. A row is one peer on one case, which is a workload, a kind of locations and a dtype. A new row
replaces the old row of the same peer and case; all other rows stay as they are. The comment above the rows is made
here, so that the file needs no edits: it explains the columns and describes the run that each row is from. This
module needs neither PyTorch nor msdeform.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

OURS = "msdeform"
KEY = ("peer", "workload", "locations", "dtype")
COLUMNS = (
    *KEY,
    "forward_us",
    "backward_us",
    "forward_graph_us",
    "backward_graph_us",
    "forward_runs",
    "backward_runs",
    "error_output",
    "error_value",
    "error_locations",
    "error_locations_away",
    "error_weights",
    "backward_memory_mib",
    "run",
)

EXPLANATION = """\
Other implementations on the GPU of the records in this folder, and msdeform as it ran next to them. Inputs have the
recipe and the sizes of workloads/*.toml. bindings/python/benches/peers.py writes this file with its comments; do not
edit it.

*_us                 median of *_runs calls, in microseconds, warm L2, by CUDA events around the call of the
                     implementation's own function
*_graph_us           the same by replaying a CUDA graph, for calls too short for events; compared where it is there
backward             all three gradients, zeroing included
error_*              relative L2 against f64 on the same stored inputs; locations also away from the borders of cells
                     by 0.01 pixel, where their gradient does not jump. Empty: not known. nan: the result has a NaN
backward_memory_mib  the most that PyTorch's allocator hands out during a backward, above what it held before:
                     gradients and workspace
run                  the run that measured the row, described below
no row               the peer does not take the dtype, or was not measured on the case

msdeform              through PyTorch, in the same process as the peers of its run
grid_sample           the PyTorch code of Deformable-DETR
grid_sample_compiled  the same under torch.compile (inductor)
deformable-detr       the CUDA extension of 2020, which detrex, DINO, Mask2Former and others copy
mmcv, hf-kernels      its descendants in mmcv 2 and on the Hugging Face hub
torch-ms-deform-attn  another one; half precision by way of f32, casts in and out timed
msda-triton           the Triton kernel, warps autotuned
flash-deform-attn     DCNv4's FlashDeformAttn, in a fork that takes bf16. It does the softmax, so it takes logits and
                      gives their gradient; packing them with the locations is not timed. Threads tuned for each case
deformops-triton      deformops with backend=Backend.TRITON, which sums value gradients in f32
deformops-cuda        deformops with backend=Backend.CUDA, compiled on the machine; casts timed
deformops-auto        deformops without a named backend, which sums value gradients in the values' dtype on this GPU

A peer is exact in a direction if every error of that direction is within the accuracy contract of the dtype (f32 1e-5,
f16 5e-4, bf16 4e-3; locations away from borders). An error that is NaN or not known is outside. A peer is exact in
training if it is exact in both directions.
"""

# Rows that were in the file before it said which run they are from.
FIRST_RUN = "1"
FIRST_RUN_WAS = "eight peers, November 2026, torch 2.11, CUDA 13; these packages do not change with ours"

Row = dict[str, str]
Key = tuple[str, ...]

# What a message of a worker to `peers.py` begins with.
MESSAGE = "@peers "


@dataclass(frozen=True)
class Case:
    """A case, and the peers to measure on it."""

    workload: str
    locations: str
    dtype: str
    peers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.workload} {self.locations} {self.dtype}"


class FormatError(ValueError):
    """A file that is not in the expected format."""


def key_of(row: Mapping[str, str]) -> Key:
    """What a row is about."""
    return tuple(row[column] for column in KEY)


@dataclass
class PeerFile:
    """The rows of a file, and the runs that they are from."""

    rows: list[Row] = field(default_factory=list)
    # By id, in the order of the runs.
    runs: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> PeerFile:
        """Reads a file, also one without the columns for memory and runs. A missing file has no rows."""
        if not path.is_file():
            return cls()
        lines = path.read_text().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        reader = csv.DictReader(line for line in lines if line and not line.startswith("#"))
        # The two newest columns may be missing.
        if tuple(reader.fieldnames or ()) not in (COLUMNS, COLUMNS[:-2]):
            raise FormatError(f"{path}: the columns are {reader.fieldnames}; expected {list(COLUMNS)}")
        rows = []
        for found in reader:
            if None in found or None in found.values():
                raise FormatError(f"{path}, line {reader.line_num} without comments: wrong number of cells")
            row = dict.fromkeys(COLUMNS, "") | found
            rows.append(row | {"run": row["run"] or FIRST_RUN})
        runs = {}
        for comment in comments:
            if found_run := re.fullmatch(r"# run (\d+): (.*)", comment):
                runs[found_run[1]] = found_run[2]
        if any(row["run"] == FIRST_RUN for row in rows):
            runs = {FIRST_RUN: FIRST_RUN_WAS} | runs
        return cls(rows, runs)

    def begin_run(self, description: str) -> str:
        """The id for the rows of a new run."""
        name = str(max((int(known) for known in self.runs), default=0) + 1)
        self.runs[name] = description
        return name

    def replace(self, rows: Iterable[Row]) -> None:
        """Puts rows in the place of those of the same peer and case, new ones behind the others of their case."""
        for row in rows:
            places = [index for index, known in enumerate(self.rows) if key_of(known) == key_of(row)]
            if places:
                self.rows[places[0]] = row
                continue
            case = [index for index, known in enumerate(self.rows) if key_of(known)[1:] == key_of(row)[1:]]
            self.rows.insert(case[-1] + 1 if case else len(self.rows), row)

    def text(self) -> str:
        """The whole file. Runs without rows are left out; the others are numbered from 1."""
        used = {row["run"] for row in self.rows}
        numbers = {name: str(index) for index, name in enumerate((name for name in self.runs if name in used), 1)}
        described = [f"run {numbers[name]}: {text}" for name, text in self.runs.items() if name in used]
        comment = [*EXPLANATION.splitlines(), "", *described]
        lines = [f"# {line}".rstrip() for line in comment]
        lines.append(",".join(COLUMNS))
        for row in self.rows:
            lines.append(",".join((row | {"run": numbers[row["run"]]})[column] for column in COLUMNS))
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Writes the whole file or nothing of it."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(sealed(self.text()))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def without_folders(command: str) -> str:
    """A command without the folders of the machine that it ran on, which say nothing about the rows."""
    return re.sub(r" --(record|workloads) \S+", "", command)


def sealed(text: str) -> str:
    """The text with its checksum, which every reader compares (`crates/msdeform-files/src/seal.rs`)."""
    return f"# checksum: sha256:{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def cell(number: float | int | None, form: str) -> str:
    """A number as the file has it. A NaN is a result; what is missing is empty."""
    if number is None:
        return ""
    return "nan" if math.isnan(number) else format(number, form)


# The columns of a table that was measured elsewhere, as they are called here.
IMPORTED = {
    "fwd_us": "forward_us",
    "bwd_us": "backward_us",
    "fwd_graph_us": "forward_graph_us",
    "bwd_graph_us": "backward_graph_us",
    "e_fwd": "error_output",
    "e_gv": "error_value",
    "e_gloc_away": "error_locations_away",
    "e_gattn": "error_weights",
    "bwd_peak_mib": "backward_memory_mib",
}
IMPORTED_DTYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
KINDS = ("local", "uniform")


def import_rows(source: Path, into: PeerFile) -> list[Row]:
    """Adds the rows of a table with the columns of `IMPORTED`.

    A workload may end in `_local` or `_uniform`; without that, locations are local. If two runs of the table have the
    same peer and case, the row with fewer empty cells counts, otherwise that of the first run.
    """
    lines = source.read_text().splitlines()
    comment = ". ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    reader = csv.DictReader(line for line in lines if line and not line.startswith("#"))
    expected = {"peer", "workload", "dtype", "run", *IMPORTED}
    missing = expected - set(reader.fieldnames or ())
    if missing:
        raise FormatError(f"{source}: has no columns {sorted(missing)}")
    names: dict[str, str] = {}
    best: dict[Key, Row] = {}
    for found in reader:
        where = f"{source}, line {reader.line_num} without comments"
        if None in found or None in found.values():
            raise FormatError(f"{where}: wrong number of cells")
        if found["dtype"] not in IMPORTED_DTYPES:
            raise FormatError(f"{where}: dtype `{found['dtype']}`; known: {', '.join(IMPORTED_DTYPES)}")
        name = found["run"]
        if name not in names:
            names[name] = into.begin_run(f"imported from {source.name}, run {name}. {comment}")
        workload, _, kind = found["workload"].rpartition("_")
        if kind not in KINDS:
            workload, kind = found["workload"], KINDS[0]
        row = dict.fromkeys(COLUMNS, "") | {
            "peer": found["peer"],
            "workload": workload,
            "locations": kind,
            "dtype": IMPORTED_DTYPES[found["dtype"]],
            "run": names[name],
        }
        for theirs, ours in IMPORTED.items():
            if found[theirs]:
                float(found[theirs])  # What is no number is an error here, not in a document.
            row[ours] = found[theirs]
        known = best.get(key_of(row))
        if known is None or _empty(row) < _empty(known):
            best[key_of(row)] = row
    into.replace(best.values())
    return list(best.values())


def _empty(row: Row) -> int:
    return sum(not text for text in row.values())
