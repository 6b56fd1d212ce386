"""The tools that measure run from end to end, on small inputs, and notice what they are there to notice."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msdeform
import pytest
import torch
from msdeform.patching import replacing
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benches"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    names = ("cold_start", "determinism", "host_cost", "models", "modes", "passes", "record", "side_by_side", "zoo")
    cold_start, determinism, host_cost, models, modes, passes, record, side_by_side, zoo = map(
        importlib.import_module, names
    )
SIZE = zoo.Input(1, 128, 128)


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class OneLayer(torch.nn.Module):
    """The least of a model in which the patch replaces a function and a layer: a real one takes a minute to trace."""

    def __init__(self) -> None:
        from transformers import DeformableDetrConfig
        from transformers.models.deformable_detr import modeling_deformable_detr

        super().__init__()
        self.embed = torch.nn.Linear(3, 32)
        configuration = DeformableDetrConfig(d_model=32, num_feature_levels=1)
        self.attention = modeling_deformable_detr.DeformableDetrMultiscaleDeformableAttention(
            configuration, num_heads=4, n_points=4
        )

    def forward(self, pixels: Tensor) -> Tensor:
        height, width = pixels.shape[2:]
        query = self.embed(pixels.flatten(2).transpose(1, 2))
        sizes = [(height, width)]
        output: Tensor = self.attention(
            hidden_states=query,
            encoder_hidden_states=query,
            reference_points=query.detach()[:, :, None, :2].sigmoid(),
            spatial_shapes=torch.tensor(sizes, device=pixels.device),
            spatial_shapes_list=sizes,
            level_start_index=torch.tensor([0], device=pixels.device),
        )[0]
        return output


def small_model() -> Any:
    size = zoo.Input(1, 16, 16)
    return zoo.Model("transformers", lambda _: OneLayer(), lambda output: output, cuda=size, cpu=size)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """A small model among the others."""
    pytest.importorskip("transformers")
    monkeypatch.setitem(zoo.MODELS, "small", small_model())
    return "small"


def test_the_host_cost_of_both_operators_is_beside_that_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cost, "ROUNDS", 2)
    monkeypatch.setattr(host_cost, "CALLS", 3)
    row = host_cost.measure_on("cpu")
    ratios = host_cost.ratios(row)
    assert len(ratios) == 8 and all(ratio > 0 for ratio in ratios.values())
    expected = row["from_offsets_forward_and_backward_us"] / row["mul_of_4_forward_and_backward_us"]
    assert ratios["from_offsets_forward_and_backward_to_mul_of_4"] == round(expected, 2)


@pytest.fixture(autouse=True)
def _known_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "build", lambda: ("c" * 40, False))


def is_sealed(file: Path) -> bool:
    """Whether a record has the checksum of its text, as the laboratory checks it."""
    found = re.fullmatch(r'\{"checksum": "sha256:([0-9a-f]{64})",(.*)', file.read_text(), re.DOTALL)
    return found is not None and hashlib.sha256(("{" + found[2]).encode()).hexdigest() == found[1]


def write_record(root: Path, *more: str) -> dict[str, Any]:
    given = ["--device", "cpu", "--root", str(root), "--parts", "models", "--rounds", "2"]
    assert record.main([*given, *more]) == 0
    [file] = root.glob("*/*-ccccccc-python/python.json")
    assert is_sealed(file)
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
        for side in (row["before"], row["plain"], row["after"]):
            assert len(side["samples_ms"]) == 2 and side["median_ms"] > 0 and side["peak_mib"] > 0
        assert row["speedup"] > 0 and row["speedup_over_plain"] > 0
        assert row["fused_calls"] > 0
        for errors in (row, row["plain"]):
            assert 0 < errors["output_error"] <= row["output_bound"] or dtype == "bf16"
            assert ("gradient_error" in errors) == (work == "training")
    # Gradients need what was computed on the way to the output.
    assert rows[eager[2]]["before"]["peak_mib"] > rows[eager[0]]["before"]["peak_mib"]
    assert "gpu" not in found["environment"] and found["environment"]["cpu"]
    monkeypatch.setattr(models, "_measure_model", None)
    assert write_record(tmp_path, "--models", small, "--modes", "eager", "compiled")["models"] == found["models"]


def test_a_record_is_made_in_pieces(small: str, tmp_path: Path) -> None:
    def kinds(found: dict[str, Any]) -> list[tuple[str, str]]:
        return [(row["pass"], row["dtype"]) for row in found["models"]]

    one = write_record(tmp_path, "--models", small, "--formats", "f32", "--passes", "training")
    assert kinds(one) == [("training", "f32")]
    two = write_record(tmp_path, "--models", small, "--formats", "bf16", "f32", "--passes", "training")
    assert kinds(two) == [("training", "f32"), ("training", "bf16")] and two["models"][0] == one["models"][0]
    # Each row names the run that it is from.
    assert [row["run"] for row in two["models"]] == [0, 1]
    assert [run["commit"] for run in two["runs"]] == ["c" * 40] * 2 and "bf16" in two["runs"][1]["command"]
    given = ["--device", "cpu", "--root", str(tmp_path), "--parts", "models", "--models", small]
    # The time is over before anything else is begun.
    assert record.main([*given, "--formats", "f32", "bf16", "--seconds", "0.001"]) == 1


def test_the_plain_way_is_that_of_functions_alone(small: str) -> None:
    OneLayer()
    with msdeform.patch("transformers", fuse=False):
        alone = set(replacing._replaced)
    switch = passes.Switch("transformers")
    try:
        originals = {function: original.__code__ for function, original in replacing._replaced.items()}
        for way, expected in (("before", set()), ("plain", alone), ("after", set(originals))):
            switch.set(way)
            assert {each for each, code in originals.items() if each.__code__ is not code} == expected
        assert alone and alone < set(originals)
    finally:
        switch.close()


def fail_in(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a compiler that fails one way."""
    ways, set_way = [""], passes.Switch.set

    def compiler(graph: Any, _: Any) -> Any:
        if ways[-1] == way:
            raise RuntimeError("not this one")
        return graph.forward

    def set_and_tell(switch: Any, to: str) -> None:
        ways.append(to)
        set_way(switch, to)

    monkeypatch.setattr(modes, "BACKEND", compiler)
    monkeypatch.setattr(passes.Switch, "set", set_and_tell)


def test_patched_ways_are_compared_where_the_model_cannot_be_run_without(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in("before", monkeypatch)
    [row] = models.measure("cpu", ["compiled"], [small], rounds=2)
    assert "before" not in row and "speedup" not in row and "not this one" in row["before_left_out"]
    assert row["speedup_over_plain"] > 0 and 0 < row["output_error"] <= row["output_bound"]
    assert models.is_within_bounds(row) and "before left out" in models.summary(row)


class WithABreak(OneLayer):
    """Grounding DINO's layers break the graph with a check: what follows is compiled as a piece of its own."""

    def forward(self, pixels: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().forward(pixels)


def test_ways_are_told_apart_behind_a_break_of_the_graph(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "BACKEND", "eager")
    broken = dataclasses.replace(zoo.MODELS[small], build=lambda _: WithABreak())
    monkeypatch.setitem(zoo.MODELS, small, broken)
    [row] = models.measure("cpu", ["compiled"], [small], rounds=1)
    assert "left_out" not in row and row["fused_calls"] > 0


class InPieces(OneLayer):
    """mmdet's positions are a piece of their own, which is compiled for each of four levels."""

    def forward(self, pixels: Tensor) -> Tensor:
        for size in range(2, 6):
            self.positions(pixels[..., :size])
        return super().forward(pixels)

    def positions(self, level: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return level + 1


def test_no_way_has_less_compiled_than_those_before_it(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "BACKEND", "eager")
    monkeypatch.setitem(zoo.MODELS, small, dataclasses.replace(zoo.MODELS[small], build=lambda _: InPieces()))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        [row] = models.measure("cpu", ["compiled"], [small], rounds=1)
    assert "left_out" not in row and not any(f"{way}_left_out" in row for way in passes.WAYS), row


@pytest.mark.parametrize("way", ["plain", "after"])
def test_what_fails_under_the_patch_alone_is_a_fault(way: str, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in(way, monkeypatch)
    [row] = models.measure("cpu", ["compiled"], [small], rounds=1)
    assert "not this one" in row["left_out" if way == "after" else "plain_left_out"]
    assert not models.is_within_bounds(row) and "FAILED" in models.summary(row)


def test_an_error_of_the_plain_way_is_noticed() -> None:
    row = {"is_comparable": True, "output_error": 0.0, "output_bound": 1e-3, "plain": {"output_error": 1e-4}}
    assert models.is_within_bounds(row)
    row["plain"] = {"output_error": 1e-2}
    assert not models.is_within_bounds(row)


def processes_of(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives rows processes that run a program of the test's; eager, for nothing would be compiled in time."""
    file = folder / "row.py"
    file.write_text(f"import sys\nsys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n{program}")
    monkeypatch.setattr(models, "__file__", str(file))
    monkeypatch.setattr(side_by_side, "MODE", "eager")


def test_rows_are_made_side_by_side_and_timed_one_by_one(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import time, side_by_side, test_benches as t
t.zoo.MODELS["small"] = t.small_model()
measure = t.models._observe
def observe(*arguments):
    with open({log!r}, "a") as log: log.write("begin ")
    found = measure(*arguments)
    time.sleep(0.5)
    with open({log!r}, "a") as log: log.write("end ")
    return found
t.models._observe = observe
t.models.main()
"""
    log = tmp_path / "log"
    processes_of(program.format(log=str(log)), tmp_path, monkeypatch)
    rows = list(side_by_side.measure("cpu", 2, [small], rounds=1, formats=["f32"]))
    assert [(row["pass"], row["dtype"]) for row in rows] == [("inference", "f32"), ("training", "f32")]
    assert all(row["speedup_over_plain"] > 0 and models.is_within_bounds(row) for row in rows)
    assert log.read_text() == "begin end begin end "
    done = [models.key_of(row) for row in rows]
    assert not list(side_by_side.measure("cpu", 2, [small], done=done, formats=["f32"]))


def test_a_row_whose_process_breaks_says_so(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes_of("sys.exit(3)\n", tmp_path, monkeypatch)
    what: dict[str, Any] = {"passes": ["inference"], "formats": ["f32"]}
    [row] = side_by_side.measure("cpu", 2, [small], **what)
    assert "ended with 3" in row["left_out"] and row["model"] == small
    # One that is not ready in time is ended, and left to another run.
    processes_of("import time\ntime.sleep(60)\n", tmp_path, monkeypatch)
    assert not list(side_by_side.measure("cpu", 2, [small], seconds_left=lambda: 0.0, **what))


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("ultralytics", "RT-DETR-L"),
        ("rfdetr", "RF-DETR-M"),
        ("libreyolo", "RT-DETR-R50"),
        ("mmdet", "Deformable-DETR-R50"),
    ],
)
def test_models_of_other_packages_are_measured(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not zoo.MODELS[name].is_installed():
        pytest.skip(f"{package} is not installed")
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
        assert 0 < row["after"]["kernels"] < row["plain"]["kernels"] < row["before"]["kernels"]
        assert (row["after"]["peak_mib"] is None) == (row["mode"] == "graph")


def test_constants_are_made_once_and_given_out_in_order() -> None:
    constants = modes.Constants()
    with constants:
        first = [torch.tensor([1, 2]), torch.as_tensor([3])]
    first[0].add_(5)  # A pass may go on with what it was given.
    with constants.again():
        second = [torch.tensor([7, 7]), torch.as_tensor([7])]
    assert second[0].tolist() == [1, 2] and second[1].tolist() == [3]


def test_numbers_that_are_written_one_by_one_are_not_copied() -> None:
    class Seen(TorchFunctionMode):
        def __torch_function__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            functions.append(function)
            return function(*arguments, **(keywords or {}))

    functions: list[Any] = []
    shapes, place = torch.empty((3, 2), dtype=torch.long), torch.tensor([2])
    with Seen(), modes.Constants():
        shapes[0, 0], shapes[0, 1], shapes[1] = 5, 6, 7
        assert torch.Tensor.__setitem__ not in functions and functions.count(torch.Tensor.fill_) == 3
        shapes[place] = 8  # What these pick is no view.
    assert shapes.tolist() == [[5, 6], [7, 7], [8, 8]] and torch.Tensor.__setitem__ in functions


class NoCopies(TorchDispatchMode):
    """Refuses what the host must wait for, or hand over."""

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        output = function(*arguments, **(keywords or {}))
        tensors = [each for each in (*arguments, output) if isinstance(each, Tensor)]
        name = function.overloadpacket.__name__
        assert name not in ("copy_", "_to_copy") or len({each.device for each in tensors}) == 1, name
        return output


def move_to_no_gpu(model: torch.nn.Module) -> None:
    """Tensors without memory on a GPU that need not be there: to read one is an error."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    moved = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
                    tensors[key] = torch.nn.Parameter(moved) if isinstance(tensor, torch.nn.Parameter) else moved


def assert_that_a_graph_can_have_a_pass(model: torch.nn.Module, run: Callable[[Tensor], Tensor], size: Any) -> None:
    with FakeTensorMode(), torch.no_grad(), modes._without_checks():
        move_to_no_gpu(model)
        pixels, constants = torch.randn(size.images, 3, size.height, size.width, device="cuda"), modes.Constants()
        run(pixels)  # Models may keep what they make for a size.
        with constants:
            run(pixels)
        with constants.again(), NoCopies():
            assert run(pixels).is_cuda


@pytest.mark.parametrize("name", ["Deformable-DETR", "RT-DETR", "RT-DETRv2", "Mask2Former", "Grounding DINO"])
def test_a_graph_can_have_all_that_a_pass_of_a_model_does(name: str) -> None:
    pytest.importorskip("transformers")
    import patched_models

    build, output = (patched_models.MODELS | patched_models.TEXT_MODELS)[name]
    model = build().eval()
    size = zoo.Input(1, 256, 320)
    assert_that_a_graph_can_have_a_pass(model, lambda pixels: getattr(model(pixel_values=pixels), output), size)


@pytest.mark.parametrize(("package", "name"), [("ultralytics", "RT-DETR-L"), ("libreyolo", "RT-DETR-R50")])
def test_a_graph_can_have_a_pass_of_other_packages(package: str, name: str) -> None:
    pytest.importorskip(package)
    found = zoo.MODELS[name]
    model = found.build(found.cpu).eval()
    assert_that_a_graph_can_have_a_pass(model, lambda pixels: found.output(model(pixels)), found.cpu)


def test_checks_are_off_for_graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TRANSFORMERS_DISABLE_TORCH_CHECK"
    for before in (None, "0"):
        monkeypatch.delenv(name, raising=False) if before is None else monkeypatch.setenv(name, before)
        with modes._without_checks():
            assert os.environ[name] == "1"
        assert os.environ.get(name) == before


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


def test_trainings_by_the_trainer_of_ultralytics_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ultralytics")
    from test_patching_ultralytics import CONFIG

    configuration = tmp_path / "rtdetr-small.yaml"
    configuration.write_text(CONFIG)
    subject = determinism.Subject("ultralytics", determinism.of_ultralytics(str(configuration)), None, None)
    monkeypatch.setitem(determinism.SUBJECTS, "small", subject)
    are_strict, finish = [], determinism._finish

    def finish_and_tell(*arguments: Any) -> Any:
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        are_strict.append(torch.are_deterministic_algorithms_enabled() and not only_warns)
        return finish(*arguments)

    monkeypatch.setattr(determinism, "_finish", finish_and_tell)
    rows = list(determinism.measure("cpu", ["small"], images=zoo.Input(2, 64, 64)))
    assert [(row["way"], row["mode"]) for row in rows] == [
        (way, mode) for way in ("unpatched", "patched") for mode in ("off", "strict")
    ]
    # One step to count calls, two runs without the mode, two with it.
    assert are_strict == [False, False, False, True, True] * 2
    for row in rows:
        assert row["steps"] == 20 and [len(samples) for samples in row["samples_ms"]] == [20, 20]
        assert row["same_bits"] and not row["warnings"] and determinism.is_as_promised(row), row
    # Both ways were trained, and not the same way: rounding differs.
    assert rows[1]["digests"][0] != rows[3]["digests"][0]


def test_a_record_has_trainings_of_a_process_of_their_own(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
import test_benches as t
t.zoo.MODELS["small"] = t.small_model()
size = t.zoo.Input(1, 16, 16)
t.determinism.SUBJECTS = {{"small": t.determinism.Subject("transformers", t.determinism.of_zoo("small"), size, size)}}
print("not a row")
sys.exit(t.determinism.main(sys.argv[1:]))
"""
    file = tmp_path / "rows.py"
    file.write_text(program)
    monkeypatch.setattr(determinism, "__file__", str(file))
    given = ["--device", "cpu", "--root", str(tmp_path), "--parts", "determinism"]
    assert record.main(given) == 0
    [written] = tmp_path.glob("*/*-ccccccc-python/python.json")
    rows = json.loads(written.read_text())["determinism"]
    assert len(rows) == 4 and all(row["same_bits"] and row["is_finite"] and row["step_ms"] > 0 for row in rows)
    assert [row["calls"] > 0 for row in rows] == [False, False, True, True]
    shown = determinism.table(rows).splitlines()
    assert shown[2:] == [
        f"| transformers | small | 1 x 16 x 16 | {way} | same bits | same bits | nothing |"
        for way in ("unpatched", "patched")
    ]
    file.write_text("import sys\nsys.exit(3)\n")
    assert record.main(given) == 1


def test_trainings_that_differ_and_what_pytorch_refuses_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "upsample_backward does not have a deterministic implementation, but you set something"
    digests = iter("abbbcd")

    def train(job: Any) -> Any:
        enabled = torch.are_deterministic_algorithms_enabled()
        assert not enabled
        if job.mode == "strict":
            raise RuntimeError(refusal)
        if job.mode == "warn_only":
            warnings.warn(refusal, stacklevel=1)
        return determinism.Training(next(digests), True, [2.0])

    size = zoo.Input(1, 8, 8)
    subject = determinism.Subject("numpy", train, size, size)
    row = {"way": "patched", "calls": 3, "device": "cpu", "package": "p", "model": "m", **vars(size)}
    off = row | determinism._measure_one(subject, determinism.Job("cpu", size, 1, "off"))
    assert not off["same_bits"] and off["refused"] is None and determinism.is_as_promised(off)
    # Without the mode nothing is promised. In it, what PyTorch refuses of the model is said, not hidden.
    same = row | determinism._measure_one(subject, determinism.Job("cpu", size, 1, "strict"))
    assert same["same_bits"] and same["mode"] == "warn_only" and determinism.is_as_promised(same)
    assert determinism.refusals(same) == ["upsample_backward"] and "upsample_backward" in determinism.summary(same)
    assert "| same bits | `upsample_backward` |" in determinism.table([off, same])
    differs = row | determinism._measure_one(subject, determinism.Job("cpu", size, 1, "strict"))
    assert not differs["same_bits"] and determinism.is_as_promised(differs)
    silent = differs | {"refused": None, "warnings": []}
    for fault in (
        silent,
        same | {"calls": 0},
        same | {"is_finite": False},
        same | {"warnings": ["something of ours"]},
        same | {"warnings": [refusal.replace("upsample", "grid_sampler_2d")]},
    ):
        assert not determinism.is_as_promised(fault) and "FAILED" in determinism.summary(fault)
    # Other errors are none of the mode's.
    with pytest.raises(RuntimeError, match="out of memory"):
        broken = determinism.Subject("numpy", fail_for_memory, size, size)
        determinism._measure_one(broken, determinism.Job("cpu", size, 1, "strict"))


def fail_for_memory(_: Any) -> Any:
    raise RuntimeError("out of memory")


def test_a_record_of_onnx_runtime_has_verified_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    onnx_runtime = importlib.import_module("onnx_runtime")
    small = {"small_enc": ((12, 10), (6, 5)), "small_dec": ((9, 7),)}
    for name, levels in small.items():
        queries = None if name.endswith("enc") else 5
        monkeypatch.setitem(onnx_runtime.WORKLOADS, name, onnx_runtime.Workload(2, levels, 3, queries, 3))
    given = ["--record", "--root", str(tmp_path), "--threads", "1", "--workloads", *small]
    assert onnx_runtime.main(given) == 0
    [file] = tmp_path.glob("*/*-ccccccc-onnxruntime/onnxruntime.json")
    assert is_sealed(file)
    rows = json.loads(file.read_text())["rows"]
    assert [row["workload"] for row in rows] == list(small)
    for row in rows:
        assert row["rel_l2"] <= onnx_runtime.BOUND and row["speedup"]["median"] > 0
        assert [len(samples) for samples in row["samples_us"].values()] == [3, 3]


@pytest.mark.skipif("MSDEFORM_OPENVINO_EXTENSION" not in os.environ, reason="MSDEFORM_OPENVINO_EXTENSION is not set")
def test_a_record_of_openvino_has_verified_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino_runtime = importlib.import_module("openvino_runtime")
    workload = openvino_runtime.nodes.Workload(1, ((9, 7), (4, 4)), 3, 5, 3)
    monkeypatch.setitem(openvino_runtime.nodes.WORKLOADS, "small", workload)
    library = os.environ["MSDEFORM_OPENVINO_EXTENSION"]
    given = ["--record", "--root", str(tmp_path), "--threads", "1", "--library", library, "--workloads", "small"]
    assert openvino_runtime.main(given) == 0
    [file] = tmp_path.glob("*/*-ccccccc-openvino/openvino.json")
    assert is_sealed(file)
    [row] = json.loads(file.read_text())["rows"]
    assert row["rel_l2"] <= openvino_runtime.nodes.BOUND and row["python_speedup"]["median"] > 0
    assert {side: len(samples) for side, samples in row["samples_us"].items()} == {
        side: 3 for side in ("grid_sample", "operator", "python")
    }
    # In bf16 the operator's error may be about as large as that of GridSample.
    exact = torch.ones(4).numpy()
    found = {"grid_sample": exact * 1.01, "operator": exact * 1.0101, "python": exact}
    model = openvino_runtime.MODEL
    assert openvino_runtime.largest_error(model, "bf16", found, exact) == pytest.approx(0.0101, rel=1e-3)
    with pytest.raises(RuntimeError, match="deformable_detr in bf16: the sides differ"):
        openvino_runtime.largest_error(model, "bf16", {**found, "operator": exact * 1.02}, exact)
    monkeypatch.setattr(openvino_runtime.nodes, "relative_error", lambda found, wanted: float("nan"))
    with pytest.raises(RuntimeError, match="differ"):
        openvino_runtime.measure("small", 1, library)


def test_onnx_runtime_times_nothing_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    onnx_runtime = importlib.import_module("onnx_runtime")
    monkeypatch.setitem(onnx_runtime.WORKLOADS, "small", onnx_runtime.Workload(1, ((4, 4),), 2, 5, 1))
    for error in (0.01, float("nan")):
        monkeypatch.setattr(onnx_runtime, "relative_error", lambda found, wanted, error=error: error)
        with pytest.raises(RuntimeError, match="differ"):
            onnx_runtime.measure("small", 1, onnx_runtime.library_path())


def test_first_calls_are_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenarios = {
        "calls": cold_start.Scenario("decoder", "training", "f32", "offsets"),
        "sizes": cold_start.Scenario("sizes", "training", "f16", steps=3),
    }
    for part, scenario in scenarios.items():
        monkeypatch.setitem(cold_start.SCENARIOS, part, [scenario])
    rows = list(cold_start.measure("cpu", list(scenarios), repeats=1, pack=tmp_path / "kernels.pack"))
    found = [(row["what"], row["operator"], row["cache"]) for row in rows]
    calls = [("decoder", "offsets", cache) for cache in ("empty", "filled", "pack")]
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
