"""The tools that measure run from end to end, on small inputs, and notice what they are there to notice."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benches"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    names = ("cold_start", "models", "modes", "passes", "record", "zoo")
    cold_start, models, modes, passes, record, zoo = map(importlib.import_module, names)
SIZE = zoo.Input(1, 128, 128)


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class OneLayer(torch.nn.Module):
    """The least of a model in which the patch replaces something: a real one takes a minute to trace."""

    def __init__(self) -> None:
        from transformers.models.deformable_detr import modeling_deformable_detr

        super().__init__()
        self.value, self.sampling_offsets = torch.nn.Linear(3, 32), torch.nn.Linear(3, 4 * 4 * 2)
        self.attention_weights = torch.nn.Linear(3, 4 * 4)
        self.core = modeling_deformable_detr.MultiScaleDeformableAttention()

    def forward(self, pixels: Tensor) -> Tensor:
        images, _, height, width = pixels.shape
        query = pixels.flatten(2).transpose(1, 2)
        value = self.value(query).view(images, -1, 4, 8)
        locations = self.sampling_offsets(query).sigmoid().view(images, -1, 4, 1, 4, 2)
        weights = self.attention_weights(query).view(images, -1, 4, 1, 4).softmax(-1)
        sizes = [(height, width)]
        shapes, starts = torch.tensor(sizes, device=pixels.device), torch.tensor([0], device=pixels.device)
        output: Tensor = self.core(value, shapes, sizes, starts, locations, weights, 64)
        return output


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """A small model among the others."""
    pytest.importorskip("transformers")
    size = zoo.Input(1, 16, 16)
    model = zoo.Model("transformers", lambda _: OneLayer(), lambda output: output, cuda=size, cpu=size)
    monkeypatch.setitem(zoo.MODELS, "small", model)
    return "small"


def write_record(root: Path, *more: str) -> dict[str, Any]:
    given = ["--device", "cpu", "--root", str(root), "--commit", "c" * 40, "--parts", "models", "--rounds", "2"]
    assert record.main([*given, *more]) == 0
    [file] = root.glob("*/*-ccccccc-python/python.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_record_of_the_processor_has_every_row(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "BACKEND", "eager")  # Nothing is generated, which would take a minute.
    found = write_record(tmp_path, "--models", small, "--modes", "eager", "compiled")
    rows = {(row["mode"], row["pass"], row["dtype"]): row for row in found["models"]}
    eager = [("eager", work, dtype) for work in ("inference", "training") for dtype in ("f32", "bf16")]
    assert list(rows) == [*eager, ("compiled", "inference", "f32")]
    for (_, work, dtype), row in rows.items():
        assert "left_out" not in row, row
        for side in (row["before"], row["after"]):
            assert len(side["samples_ms"]) == 2 and side["median_ms"] > 0 and side["peak_mib"] > 0
        assert 0 < row["output_error"] <= row["output_bound"] or dtype == "bf16"
        assert ("gradient_error" in row) == (work == "training")
    # Gradients need what was computed on the way to the output.
    assert rows[eager[2]]["before"]["peak_mib"] > rows[eager[0]]["before"]["peak_mib"]
    assert "gpu" not in found["environment"] and found["environment"]["cpu"]
    monkeypatch.setattr(models, "_measure_model", None)
    assert write_record(tmp_path, "--models", small, "--modes", "eager", "compiled")["models"] == found["models"]


@pytest.mark.parametrize(("package", "name"), [("ultralytics", "RT-DETR-L"), ("rfdetr", "RF-DETR-M")])
def test_models_of_other_packages_are_measured(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package)
    monkeypatch.setitem(modes.PLAN, "cpu", {"eager": (("inference",), ("f32",))})
    [row] = models.measure("cpu", names=[name], rounds=1, images=SIZE)
    assert "left_out" not in row and models.is_within_bounds(row)
    assert row["output_error"] > 0 and row["package"] == package


@pytest.mark.parametrize("name", [name for name, model in zoo.MODELS.items() if model.package == "transformers"])
def test_models_of_transformers_can_be_built(name: str) -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):  # Without their weights.
        network = zoo.MODELS[name].build(zoo.MODELS[name].cpu)
    keys = [key for key, _ in network.named_parameters()]
    assert any("sampling_offsets" in key for key in keys) and any("attention_weights" in key for key in keys)


def test_a_patch_that_is_not_used_is_a_fault(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes.Switch, "set", lambda switch, is_on: None)
    row = next(models.measure("cpu", names=[small], rounds=1))
    assert "calls of the operator" in row["left_out"] and not models.is_within_bounds(row)


def test_a_mode_that_fails_is_a_row_that_says_why(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "BACKEND", "no such compiler")
    [row] = models.measure("cpu", ["compiled"], [small], rounds=1)
    assert row["left_out"].startswith("before: ") and "no such compiler" in row["left_out"]
    assert models.is_within_bounds(row) and "left out" in models.summary(row)
    monkeypatch.setitem(zoo.MODELS, small, dataclasses.replace(zoo.MODELS[small], left_out={"compiled": "too large"}))
    [row] = models.measure("cpu", ["compiled"], [small], rounds=1)
    assert row["left_out"] == "too large"


def test_compiling_is_broken_off() -> None:
    with pytest.raises(modes._TooLong, match="after 1 s"), modes._time_limit(1):
        for _ in range(100):
            try:
                torch.ones(1).add(1)
                __import__("time").sleep(0.1)
            except Exception:  # As compilers do.
                continue


def test_an_error_beyond_its_bound_is_noticed() -> None:
    exact = (torch.ones(4),)
    row = passes.compare((torch.full((4,), 1.01),), exact, exact, "f32")
    assert row["output_error"] == pytest.approx(0.01, rel=1e-3) and not models.is_within_bounds(row)
    assert not models.is_within_bounds(passes.compare((torch.full((4,), torch.nan),), exact, exact, "f32"))
    assert models.is_within_bounds(passes.compare(exact, exact, exact, "f32"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU is needed")
def test_a_gpu_has_kernels_and_graphs(small: str) -> None:
    for row in models.measure("cuda", ["eager", "graph"], [small], rounds=2):
        assert "left_out" not in row and models.is_within_bounds(row), row
        assert 0 < row["after"]["kernels"] < row["before"]["kernels"]
        assert (row["after"]["peak_mib"] is None) == (row["mode"] == "graph")


def test_constants_are_made_once_and_given_out_in_order() -> None:
    constants = modes.Constants()
    with constants:
        first = [torch.tensor([1, 2]), torch.as_tensor([3])]
    first[0].add_(5)  # A pass may go on with what it was given.
    with constants.again():
        second = [torch.tensor([7, 7]), torch.as_tensor([7])]
    assert second[0].tolist() == [1, 2] and second[1].tolist() == [3]


def test_peak_memory_is_the_most_that_is_held_at_once() -> None:
    def run() -> None:
        first = torch.ones(2**20)  # 4 MiB.
        second = first + 1
        del first
        third = second + 1
        del second, third

    assert passes.peak_mib("cpu", run) == pytest.approx(8, abs=0.5)


@pytest.mark.parametrize(
    ("name", "folder"), [("NVIDIA H200", "h200"), ("AMD EPYC (genoa), 2 cores", "epyc-genoa-2c"), ("X 1.5", "x-1-5")]
)
def test_folders_are_named_like_those_of_other_records(name: str, folder: str) -> None:
    assert record.slug(name) == folder


def test_a_record_of_onnx_runtime_has_verified_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    onnx_runtime = importlib.import_module("onnx_runtime")
    small = {"small_enc": ((12, 10), (6, 5)), "small_dec": ((9, 7),)}
    for name, levels in small.items():
        queries = None if name.endswith("enc") else 5
        monkeypatch.setitem(onnx_runtime.WORKLOADS, name, onnx_runtime.Workload(2, levels, 3, queries, 3))
    given = ["--record", "--root", str(tmp_path), "--commit", "c" * 40, "--threads", "1", "--workloads", *small]
    assert onnx_runtime.main(given) == 0
    [file] = tmp_path.glob("*/*-ccccccc-onnxruntime/onnxruntime.json")
    rows = json.loads(file.read_text())["rows"]
    assert [row["workload"] for row in rows] == list(small)
    for row in rows:
        assert row["rel_l2"] <= onnx_runtime.BOUND and row["speedup"]["median"] > 0
        assert [len(samples) for samples in row["samples_us"].values()] == [3, 3]


def test_onnx_runtime_times_nothing_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    onnx_runtime = importlib.import_module("onnx_runtime")
    monkeypatch.setitem(onnx_runtime.WORKLOADS, "small", onnx_runtime.Workload(1, ((4, 4),), 2, 5, 1))
    for error in (0.01, float("nan")):
        monkeypatch.setattr(onnx_runtime, "relative_error", lambda found, wanted, error=error: error)
        with pytest.raises(RuntimeError, match="differ"):
            onnx_runtime.measure("small", 1, onnx_runtime.library_path())


def test_first_calls_are_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = {
        "calls": cold_start.Scenario("decoder", "training", "f32", "offsets"),
        "sizes": cold_start.Scenario("sizes", "training", "f16", steps=3),
    }
    for part, scenario in scenarios.items():
        monkeypatch.setitem(cold_start.SCENARIOS, part, [scenario])
    rows = list(cold_start.measure("cpu", list(scenarios), repeats=1))
    found = [(row["what"], row["operator"], row["cache"]) for row in rows]
    calls = [("decoder", "offsets", cache) for cache in ("empty", "filled")]
    assert found == [*calls, ("sizes", "locations", "empty")]
    assert all(row["later_s"] > 0 and row["first_s"] > 0 and row["files_before"] == 0 for row in rows)
    assert rows[-1]["steps"] == 3 and rows[-1]["longest_later_s"] > 0


def test_a_step_that_stops_is_counted_and_said() -> None:
    sizes = [{"queries": at} for at in range(6)]
    # The first one may.
    found = cold_start.summary_of([3.0, 0.1, 0.1, 1.1, 0.1, 0.1], sizes)
    assert found["stops"] == [{"step": 3, "s": 1.1, "queries": 3}] and found["longest_later_s"] == 1.1
    assert not cold_start.summary_of([3.0, 0.1, 0.1, 0.9, 0.1, 0.1], sizes)["stops"]
    row = {"target_s": 1.5, "first_s": 1.0}
    assert cold_start.is_within_target(row | {"stops": []})
    assert not cold_start.is_within_target(row | {"stops": [1]}) and not cold_start.is_within_target(
        row | {"first_s": 2}
    )


def test_a_process_that_breaks_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="without an answer"):
        cold_start.Worker(cold_start.Scenario("nothing of ours", "training", "f32"), "cpu", tmp_path).wait()
