"""`python -m msdeform`: the first thing that a newcomer runs, with PyTorch and without."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from typing import Any

import msdeform
import numpy as np
import pytest
from msdeform.__main__ import _time, main
from msdeform._first_look import checks, machine, times
from surroundings import HAS_TORCH

NO_PACK = {"path": None, "summary": None, "ignored": None}
CUDA = {
    "driver": "13.0",
    "missing": None,
    "nvrtc": {"version": "13.0", "path": "x", "missing": None},
    "kernel_pack": NO_PACK,
    "gpus": [],
}
MACHINE: dict[str, Any] = {
    "msdeform": "0.1.0",
    "python": "3.11.2",
    "numpy": "2.3.0",
    "system": "Linux x86_64",
    "torch": {"version": "2.11.0+cu130", "cuda": "13.0", "sees_gpus": 1, "missing": None},
    "cpu": {"cores": 2, "instructions": "avx2"},
    "cuda": {**CUDA, "gpus": [{"ordinal": 0, "name": "G", "compute_capability": "9.0", "missing": None}]},
}


@pytest.fixture(autouse=True)
def _brief_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample of each time, and all rows however slow this machine is."""
    monkeypatch.setattr(times, "SECONDS", 0.0)
    monkeypatch.setattr(times, "MOST_SECONDS", 600.0)


def test_a_process_prints_one_json_object_in_which_every_check_passed() -> None:
    command = [sys.executable, "-m", "msdeform", "--json", "--no-times", "--device", "cpu"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["passed"] and all(check["rel_l2"] <= check["bound"] for check in report["checks"])
    assert report["machine"]["msdeform"] == msdeform.__version__
    kinds = {(check["what"], check["dtype"]) for check in report["checks"]}
    expected = {("NumPy, forward", dtype) for dtype in ("f32", "f16")}
    for dtype in ("f32", "f16", "bf16"):
        if HAS_TORCH:
            parts = [f"{what}, {part}" for what in ("PyTorch", "from offsets") for part in ("forward", "backward")]
        else:
            parts = ["forward", "backward"]
        expected |= {(part, dtype) for part in parts}
    assert kinds == expected


def test_without_torch_numpy_and_the_native_gradients_are_checked_and_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "not installed: `pip install torch`"
    monkeypatch.setattr(machine, "import_torch", lambda: (None, why))
    assert main(["--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert why in said and "8 checks passed" in said and "need PyTorch" in said
    row = next(line for line in said.splitlines() if line.startswith("cpu, rtdetr_dec, float32"))
    assert float(row.split()[-1]) > 0
    assert "grid_sample" not in said


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch's column needs PyTorch")
def test_the_table_has_grid_sample_beside_ours_where_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(times, "WORKLOADS", {"cpu": ("edge_channels_64",)})
    said: list[str] = []
    rows = _time(torch, ["cpu"], time.perf_counter(), said.append)
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    parts = [f"{prefix}{part}_ms" for prefix in ("", "grid_sample_") for part in ("forward", "training")]
    assert all(rows[0][part] > 0 for part in parts), rows[0]
    assert "grid_sample" in said[0] and said[1].startswith("cpu, edge_channels_64, float32") and said[1].endswith("x")


@pytest.mark.skipif(not HAS_TORCH, reason="`grid_sample` is PyTorch's")
def test_what_is_timed_beside_ours_computes_the_same() -> None:
    import torch

    value, locations, weights = (torch.tensor(array, dtype=torch.float64) for array in checks._inputs())
    theirs = times.by_grid_sample(torch, value, checks.LEVELS, locations, weights)
    ours = msdeform.ms_deform_attn(value, checks.LEVELS, None, locations, weights)
    torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_a_wrong_result_is_a_failed_check_and_exit_code_1(
    wrong: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = msdeform.ms_deform_attn
    monkeypatch.setattr(msdeform, "ms_deform_attn", lambda *arguments: right(*arguments) * np.float32(wrong))
    monkeypatch.setattr(machine, "import_torch", lambda: (None, "not installed"))
    assert main(["--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "2 of 8 checks FAILED" in said and machine.PAGE in said
    assert "milliseconds" in said and "rtdetr_dec" not in said, "what is wrong is not timed"


def test_an_error_in_a_check_is_told_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the driver does not load what NVRTC compiled")

    monkeypatch.setattr(msdeform, "bench", broken)
    monkeypatch.setattr(machine, "import_torch", lambda: (None, "not installed"))
    assert main(["--device", "cpu", "--json", "--no-times"]) == 1
    found = json.loads(capsys.readouterr().out)["checks"]
    assert [check["passed"] for check in found] == [True] * 2 + [False] * 6
    assert "RuntimeError: the driver does not load" in found[-1]["error"]


def test_a_device_that_is_not_there_is_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--device", "cuda:99"])
    assert ended.value.code == 2
    assert "cuda:99 cannot be used here; known: cpu" in capsys.readouterr().err


def test_when_time_is_up_no_further_row_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_SECONDS", -1.0)
    assert [row["workload"] for row in times.rows(None, ["cpu"], 0.0)] == ["rtdetr_dec"]


def changed(part: str, **change: Any) -> dict[str, Any]:
    found = copy.deepcopy(MACHINE)
    found[part].update(change)
    return found


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            changed("cuda", nvrtc={"version": None, "path": None, "missing": "NVRTC was not found"}),
            "NVRTC was not found",
        ),
        (changed("cuda", kernel_pack={**NO_PACK, "ignored": "x.pack: is damaged"}), "x.pack: is damaged"),
        (changed("cuda", driver=None, missing="the CUDA driver supports CUDA 11.8, at least 12.0"), "CUDA 11.8"),
        (changed("torch", cuda=None, sees_gpus=0), "built without CUDA"),
        (changed("torch", sees_gpus=0), "update the driver"),
        (changed("torch", version="2.1.2"), "pip install -U torch"),
        (changed("torch", version=None, missing="is installed and cannot be imported: libx"), "libx; install it again"),
    ],
)
def test_common_troubles_come_with_what_to_do(found: dict[str, Any], words: str) -> None:
    assert words in " ".join(machine.advice(found))


def test_a_machine_that_lacks_nothing_or_has_no_gpu_gets_no_advice() -> None:
    assert machine.advice(MACHINE) == [] and machine.gpus(MACHINE) == ["cuda:0"]
    plain = changed("cuda", driver=None, gpus=[], missing="no CUDA driver (libcuda.so.1 cannot be loaded)")
    assert machine.advice(plain) == [] and machine.gpus(plain) == []


def test_packed_kernels_need_no_compiler_and_are_shown() -> None:
    missing = {"version": None, "path": None, "missing": "NVRTC was not found"}
    bare = changed("cuda", nvrtc=missing)
    assert machine.gpus(bare) == []
    packed = changed("cuda", nvrtc=missing, kernel_pack={"path": "x.pack", "summary": "3 kernels", "ignored": None})
    assert machine.gpus(packed) == ["cuda:0"]
    assert "only calls whose kernels are packed" in " ".join(machine.advice(packed))
    assert any("3 kernels, x.pack" in line for line in machine.lines(packed))
    assert any("none packed" in line for line in machine.lines(bare))
