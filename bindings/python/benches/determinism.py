"""Compares two trainings from the same seed bit by bit, with and without PyTorch's deterministic mode.

    python benches/determinism.py [--device cpu|cuda] [--models NAME ...] [--steps N]    # a line for every row
    python benches/determinism.py --table RECORD                    # the table of docs/patching.md from a record

RT-DETR of ultralytics uses its own trainer, on random pictures. Models of transformers and rfdetr (see `zoo`) use
AdamW, towards a fixed random direction of their output. Each model is trained unpatched and patched. In deterministic
mode PyTorch refuses operators without deterministic code. The row then lists these operators, which may be the model's
own, and the runs continue with `warn_only=True`. `record.py --parts determinism` keeps the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msdeform
import numpy as np
import torch
import zoo
from passes import count_calls, make_step, prepare, synchronise
from torch import nn

# What cuBLAS wants for the deterministic mode; PyTorch reads it at the first use of CUDA, which no import is.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

STEPS = 20
# Steps that are not timed: kernels are compiled, algorithms chosen.
COLD_STEPS = 3
UNPATCHED, PATCHED = "unpatched", "patched"
# PyTorch's deterministic mode: not asked for; what it has no code for is an error; or a warning.
OFF, STRICT, WARN = "off", "strict", "warn_only"
_REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")


@dataclass(frozen=True)
class Job:
    """How to train."""

    device: str
    images: zoo.Input
    steps: int
    mode: str


@dataclass(frozen=True)
class Training:
    """What came of it."""

    digest: str
    is_finite: bool
    samples_ms: list[float]


@dataclass(frozen=True)
class Subject:
    """A model that is trained."""

    package: str
    train: Callable[[Job], Training]
    cuda: zoo.Input
    cpu: zoo.Input


def _set(mode: str) -> None:
    torch.use_deterministic_algorithms(mode != OFF, warn_only=mode == WARN)


def _finish(network: nn.Module, samples_ms: list[float]) -> Training:
    digest, is_finite = hashlib.sha256(), True
    for key, tensor in sorted(network.state_dict().items()):
        numbers = tensor.detach().cpu().contiguous()
        digest.update(key.encode())
        digest.update(numbers.reshape(-1).view(torch.uint8).numpy().tobytes())
        is_finite = is_finite and bool(numbers.isfinite().all())
    return Training(digest.hexdigest(), is_finite, samples_ms)


class _Clock:
    """Times steps, the GPU's work included."""

    def __init__(self, device: str) -> None:
        self.device, self.samples_ms, self.start = device, list[float](), 0.0

    def begin(self) -> None:
        synchronise(self.device)
        self.start = time.perf_counter()

    def end(self) -> None:
        synchronise(self.device)
        self.samples_ms.append(round((time.perf_counter() - self.start) * 1e3, 4))


def of_zoo(name: str) -> Callable[[Job], Training]:
    """Trains a model of the zoo."""

    def train(job: Job) -> Training:
        model = zoo.MODELS[name]
        network, pixels = prepare(model, job.device, job.images)
        network.train()
        optimiser, clock = torch.optim.AdamW(network.parameters(), lr=1e-4), _Clock(job.device)
        step = make_step(model, network, pixels, "training", "f32")
        torch.manual_seed(3)  # Of dropout.
        _set(job.mode)
        try:
            for _ in range(job.steps):
                clock.begin()
                optimiser.zero_grad()
                step(1.0)
                optimiser.step()
                clock.end()
        finally:
            _set(OFF)
        return _finish(network, clock.samples_ms)

    return train


class _EnoughError(Exception):
    """Ends a trainer after its last step: there is nothing to validate and to save."""


def _write_pictures(folder: Path, count: int) -> Path:
    """Random pictures with a box each, as ultralytics wants them."""
    from PIL import Image

    random = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (folder / kind).mkdir()
    for index in range(count):
        pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{index}.png")
        (folder / "labels" / f"{index}.txt").write_text(f"{index % 3} 0.5 0.5 0.4 0.3\n")
    path = folder / "data.yaml"
    path.write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [a, b, c]\n")
    return path


def of_ultralytics(configuration: str) -> Callable[[Job], Training]:
    """Trains RT-DETR by the trainer of its package, augmentations and all."""

    def train(job: Job) -> Training:
        # It looks for a font before it trains, and would fetch the one that it does not find. Nothing is drawn here.
        fonts = Path(os.environ["YOLO_CONFIG_DIR"]) / "Ultralytics"
        fonts.mkdir(parents=True, exist_ok=True)
        (fonts / "Arial.ttf").touch()
        from ultralytics import RTDETR

        clock, found = _Clock(job.device), list[Training]()

        def begin_training(_: Any) -> None:
            # Its own `deterministic=True` only warns.
            if job.mode != OFF:
                _set(job.mode)

        def end_step(trainer: Any) -> None:
            clock.end()
            if len(clock.samples_ms) == job.steps:
                found.append(_finish(trainer.model, clock.samples_ms))
                raise _EnoughError

        model = RTDETR(configuration)
        model.add_callback("on_train_start", begin_training)
        model.add_callback("on_train_batch_start", lambda _: clock.begin())
        model.add_callback("on_train_batch_end", end_step)
        count = job.images.images
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_EnoughError):
            model.train(
                data=str(_write_pictures(Path(folder), count * job.steps)),
                project=folder,
                imgsz=job.images.height,
                batch=count,
                # The optimiser has its turn in every step.
                nbs=count,
                warmup_epochs=0,
                optimizer="AdamW",
                lr0=1e-4,
                epochs=1,
                seed=0,
                deterministic=job.mode != OFF,
                device=0 if job.device == "cuda" else "cpu",
                workers=0,
                amp=False,
                val=False,
                plots=False,
                verbose=False,
            )
        if not found:
            raise RuntimeError(f"the trainer ended after {len(clock.samples_ms)} steps of {job.steps}")
        return found[0]

    return train


# A CPU gets small images because only reproducibility is compared.
SUBJECTS = {
    "RT-DETR-L": Subject(
        "ultralytics", of_ultralytics("rtdetr-l.yaml"), zoo.Input(4, 640, 640), zoo.Input(2, 128, 128)
    ),
    **{
        name: Subject(zoo.MODELS[name].package, of_zoo(name), zoo.MODELS[name].cuda, zoo.Input(1, 128, 128))
        for name in ("RT-DETR", "Deformable-DETR", "RF-DETR-M")
    },
}


def _observe(subject: Subject, job: Job) -> tuple[list[Training], list[str]]:
    """Two runs, and what was warned of: about that mode, or by this package."""
    ours = str(Path(msdeform.__file__).parent)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = [subject.train(job) for _ in range(2)]
    messages = [
        str(each.message) for each in caught if "determinis" in str(each.message) or each.filename.startswith(ours)
    ]
    return runs, list(dict.fromkeys(message.splitlines()[0] for message in messages))


def _measure_one(subject: Subject, job: Job) -> dict[str, Any]:
    """The columns of one row, except those that name it."""
    refused = None
    try:
        runs, warned = _observe(subject, job)
    except RuntimeError as error:
        if job.mode != STRICT or _REFUSED.search(str(error)) is None:
            raise
        refused = str(error).splitlines()[0]
        job = Job(job.device, job.images, job.steps, WARN)
        runs, warned = _observe(subject, job)
    samples_ms = [run.samples_ms for run in runs]
    timed = [sample for samples in samples_ms for sample in samples[COLD_STEPS:] or samples]
    return {
        "mode": job.mode,
        "refused": refused,
        "warnings": warned,
        "digests": [run.digest for run in runs],
        "same_bits": runs[0].digest == runs[1].digest,
        "is_finite": all(run.is_finite for run in runs),
        "step_ms": round(statistics.median(timed), 4),
        "samples_ms": samples_ms,
    }


def measure(
    device: str, names: Sequence[str] | None = None, steps: int = STEPS, images: zoo.Input | None = None
) -> Iterator[dict[str, Any]]:
    """One row per model, unpatched and patched, with and without the deterministic mode."""
    for name in names or SUBJECTS:
        subject = SUBJECTS[name]
        size = images or getattr(subject, device)
        labels = {"package": subject.package, "model": name, "device": device, **vars(size), "steps": steps}
        try:
            found = {each: importlib.metadata.version(each) for each in ("msdeform", "torch", subject.package)}
        except importlib.metadata.PackageNotFoundError as missing:
            yield {**labels, "left_out": f"{missing.name} is not installed"}
            continue
        for way in (UNPATCHED, PATCHED):
            msdeform.unpatch()
            if way == PATCHED and not msdeform.patch(subject.package):
                # What is not imported yet is patched when it is; the calls below say whether it was.
                importlib.import_module(subject.package)
            try:
                calls = count_calls(functools.partial(subject.train, Job(device, size, 1, OFF))).all
                for mode in (OFF, STRICT):
                    row = _measure_one(subject, Job(device, size, steps, mode))
                    yield {**labels, "versions": found, "way": way, "calls": calls, **row}
            finally:
                msdeform.unpatch()


def measure_in_process(device: str, models: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The same in a process of its own: cuBLAS is told of the mode before its first use, and trainers change much."""
    command = [sys.executable, __file__, "--device", device, *(["--models", *models] if models else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"package"'):
                yield json.loads(line)
            else:
                print(line, end="", flush=True)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"determinism.py ended with {process.returncode}")


def refusals(row: dict[str, Any]) -> list[str]:
    """Operators that PyTorch has no deterministic code for."""
    return sorted({name for said in [row["refused"] or "", *row["warnings"]] for name in _REFUSED.findall(said)})


def is_as_promised(row: dict[str, Any]) -> bool:
    """Whether a patched model, in the deterministic mode, trains with the same bits, and nothing warns.

    What PyTorch refuses in the model itself, patched or not, is not ours to promise; the operator's own calls are.
    """
    if "left_out" in row:
        return True
    if not row["is_finite"] or (row["calls"] > 0) != (row["way"] == PATCHED):
        return False
    if row["way"] != PATCHED or row["mode"] == OFF:
        return True
    known = refusals(row)
    if any(not _REFUSED.search(said) for said in row["warnings"]) or any("grid_sampler" in name for name in known):
        return False
    return bool(row["same_bits"] or known)


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    label = f"{row['package']:12} {row['model']:16}"
    if "left_out" in row:
        return f"{label} left out: {row['left_out']}"
    said = "".join(f"\n    {each}" for each in row["warnings"])
    refused = f"  refused: {row['refused']}" if row["refused"] else ""
    verdict = "" if is_as_promised(row) else "  FAILED"
    bits = "same bits" if row["same_bits"] else "bits differ"
    return f"{label} {row['way']:9} {row['mode']:9} {bits:11} {row['step_ms']:9.2f} ms a step{refused}{verdict}{said}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table for a page. CPU rows have no times because other work runs on the CPU at the same time."""
    lines = [
        "| package | model | input | | ordinary | deterministic | PyTorch refuses |",
        "|---|---|---|---|---|---|---|",
    ]
    pairs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "left_out" not in row:
            size = f"{row['images']} x {row['height']} x {row['width']}"
            pairs.setdefault((row["package"], row["model"], size, row["way"]), []).append(row)

    def shown(row: dict[str, Any]) -> str:
        bits = "same bits" if row["same_bits"] else "bits differ"
        return f"{bits}, {row['step_ms']:.1f} ms" if row["device"] == "cuda" else bits

    for key, pair in pairs.items():
        refused = ", ".join(f"`{name}`" for name in refusals(pair[-1])) or "nothing"
        lines.append("| " + " | ".join((*key, *map(shown, pair), refused)) + " |")
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """Measures and prints, or prints what was measured; 1 if something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", choices=tuple(SUBJECTS), help="not all")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--table", type=Path, metavar="RECORD", help="a python.json")
    arguments = parser.parse_args(given)
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text())["determinism"]), end="")
        return 0
    is_fine = True
    for row in measure(arguments.device, arguments.models, arguments.steps):
        print(json.dumps(row), flush=True)
        print(summary(row), file=sys.stderr, flush=True)
        is_fine = is_fine and is_as_promised(row)
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
