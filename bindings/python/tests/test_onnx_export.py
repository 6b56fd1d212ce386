"""Models that call the operators, exported to ONNX by both exporters for every target: nodes, results, refusals."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import warnings
from typing import Any

import msdeform
import msdeform.onnx
import pytest
import torch
from made_up_framework import framework
from oracle import assert_close, make_case
from torch import Tensor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
# ONNX Runtime may be missing too.
nodes = pytest.importorskip("onnx_nodes", exc_type=ImportError)

SHAPES = [(9, 12), (5, 6), (1, 3)]
SAMPLES = {"msdeform": [3, 1, 2], "gridsample": [3, 1, 2], "mmdeploy": [2, 2, 2], "tensorrt": [2, 2, 2]}
BATCH, QUERIES = {0: "batch"}, {0: "batch", 1: "queries"}


class Calls(torch.nn.Module):
    """The operators in all their forms."""

    def __init__(self, points: list[int]) -> None:
        super().__init__()
        self.points = points
        self.layer = msdeform.MSDeformAttn(32, n_levels=3, n_heads=4, n_points=points)
        torch.nn.init.normal_(self.layer.sampling_offsets.weight, std=0.1)
        torch.nn.init.normal_(self.layer.attention_weights.weight, std=0.3)

    def forward(
        self, value: Tensor, locations: Tensor, weights: Tensor, boxes: Tensor, offsets: Tensor, logits: Tensor
    ) -> tuple[Tensor, ...]:
        def from_offsets(references: Tensor, logits: Tensor = logits, **rule: Any) -> Tensor:
            return msdeform.ms_deform_attn_from_offsets(
                value, SHAPES, references, offsets, logits, points=self.points, **rule
            )

        read = torch.tensor(SHAPES)
        query = offsets.flatten(2)[..., :32].to(value.dtype)
        return (
            msdeform.ms_deform_attn(value, SHAPES, None, locations, weights, points=self.points),
            # Other locations, exactly half: the exporter makes one node of two that are the same.
            msdeform.ms_deform_attn(value, read, None, locations * 0.5, weights, points=self.points),
            from_offsets(boxes),
            from_offsets(boxes[..., :2], nearest=True),
            from_offsets(boxes[:, :, :1], logits.clamp(min=-1.0), offset_scale=0.25, softmax=False),
            from_offsets(boxes[:, :, :2, :2], anchors=True),
            self.layer(query, boxes.to(value.dtype), value.flatten(2), SHAPES),
        )


def arguments(target: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """With locations that are far outside, infinite and on borders, and rows of logits that are all -inf."""
    case = make_case(points=SAMPLES[target], shapes=tuple(SHAPES))
    generator = torch.Generator().manual_seed(8)
    locations = case.locations.clone()
    extremes = torch.tensor([-1.0, 0.0, 1.0, 2.0, 1e4, -1e4, torch.inf, -torch.inf])
    locations[0, :8, 0, 0, 0] = extremes
    locations[1, :8, 1, 3, 1] = extremes
    logits = torch.randn(2, 11, 4, 6, generator=generator)
    logits[0, 0, 0], logits[1, 2, 3, 1:] = -torch.inf, -torch.inf
    given = (
        case.value,
        locations,
        case.weights,
        torch.rand(2, 11, 3, 4, generator=generator),
        torch.randn(2, 11, 4, 6, 2, generator=generator) * 2,
        logits,
    )
    return tuple(tensor.to(dtype) for tensor in given)


def fewer(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One image and five queries of them."""
    return tuple((tensor[1:] if at == 0 else tensor[1:, 2:7]).contiguous() for at, tensor in enumerate(given))


def exported(
    model: torch.nn.Module, given: tuple[Tensor, ...], target: str, path: pathlib.Path, opset: int, is_dynamo: bool
) -> Any:
    """The model of either exporter, for any number of images and queries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_dynamo:
            program = torch.onnx.export(
                model,
                given,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=(BATCH, *[QUERIES] * (len(given) - 1)),
                custom_translation_table=msdeform.onnx.table(target),
                verbose=False,
            )
            return program.model_proto
        names = [f"input_{at}" for at in range(len(given))]
        axes = {name: BATCH if at == 0 else QUERIES for at, name in enumerate(names) if given[at].is_floating_point()}
        with msdeform.onnx.exporting(target):
            torch.onnx.export(
                model, given, str(path), dynamo=False, opset_version=opset, input_names=names, dynamic_axes=axes
            )
        return onnx.load(str(path))


NODES = {
    "msdeform": {"MSDeformAttn": 2, "MSDeformAttnFromOffsets": 5},
    "mmdeploy": {"MMCVMultiScaleDeformableAttention": 7},
    "tensorrt": {"MultiscaleDeformableAttnPlugin_TRT": 7},
    "gridsample": {"GridSample": 7 * 3},
}
# The exporter by `torch.export` takes seconds for the smallest model, so formats and opsets are shared out.
RUNS = [
    *((target, 18, True, torch.float32) for target in ("msdeform", "mmdeploy", "tensorrt")),
    ("gridsample", 16, True, torch.float32),
    ("gridsample", 18, True, torch.float16),
    *((target, 17, False, torch.float16) for target in NODES),
    *(("gridsample", opset, False, torch.float32) for opset in (16, 17, 18)),
]


@pytest.mark.parametrize(("target", "opset", "is_dynamo", "dtype"), RUNS)
def test_what_is_exported_gives_the_same(
    target: str, opset: int, is_dynamo: bool, dtype: torch.dtype, tmp_path: pathlib.Path
) -> None:
    model = Calls(SAMPLES[target]).eval().to(dtype)
    given = arguments(target, dtype)
    found = exported(model, given, target, tmp_path / "model.onnx", opset, is_dynamo)
    assert nodes.count(found) == NODES[target]
    assert next(entry.version for entry in found.opset_import if entry.domain == "") == opset
    if target == "gridsample":
        assert {entry.domain for entry in found.opset_import} == {""}, "standard operators only"
    for tensors in (given, fewer(given)):
        with torch.no_grad():
            expected = model(*tensors)
        for at, (ours, theirs) in enumerate(zip(nodes.run(found, *tensors), expected, strict=True)):
            assert ours.dtype is dtype
            # In half precision the layer around the operator differs in its own roundings.
            assert_close(ours, theirs, 1e-5 if dtype is torch.float32 else 2e-3, f"output {at}")


def test_half_precision_coordinates_are_not_rounded_again(tmp_path: pathlib.Path) -> None:
    """Float32 locations stay float32 if values are float16. Here a step of half precision is two pixels wide."""
    pixels = 4096
    value = torch.arange(pixels, dtype=torch.float32).remainder(64).view(1, pixels, 1, 1).half()
    locations = torch.linspace(0.5, 0.99, 50).view(1, 50, 1, 1, 1, 1).expand(-1, -1, -1, -1, -1, 2).contiguous()
    weights = torch.ones(1, 50, 1, 1, 1)

    class Layer(torch.nn.Module):
        def forward(self, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
            return msdeform.ms_deform_attn(value, [(1, pixels)], None, locations, weights)

    locations[..., 1] = 0.5
    expected = Layer()(value, locations, weights)
    for target in msdeform.onnx.TARGETS:
        given = (value, locations, weights)
        found = nodes.run(exported(Layer(), given, target, tmp_path / "model.onnx", 17, False), *given)[0]
        assert found.dtype is torch.float16
        assert_close(found, expected, 5e-4, target)


# Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mmdeploy", "tensorrt"])
def test_points_that_differ_are_refused_where_a_node_has_no_words_for_them(target: str, tmp_path: pathlib.Path) -> None:
    given = arguments("msdeform")
    with pytest.raises(ValueError, match=r'\[3, 1, 2\].*use the target "msdeform" or "gridsample"'):
        exported(Calls([3, 1, 2]).eval(), given, target, tmp_path / "model.onnx", 17, False)


def test_other_refusals_say_what_to_do(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r'`target` is .onnx.; expected one of "msdeform", "mmdeploy"'):
        msdeform.onnx.table("onnx")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`target` is"), msdeform.onnx.exporting("onnx"):  # type: ignore[arg-type]
        pass
    path = tmp_path / "model.onnx"
    model = Calls([3, 1, 2]).eval()
    with pytest.raises(ValueError, match="`opset_version=16` or newer"):
        exported(model, arguments("gridsample"), "gridsample", path, 15, False)
    with pytest.raises(ValueError, match="float64 is not exported"):
        exported(model.double(), arguments("gridsample", torch.float64), "gridsample", path, 17, False)
    with pytest.raises(ValueError, match=r"msdeform\.onnx\.exporting"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.float(), arguments("msdeform"), str(path), dynamo=False, opset_version=17)


class Sized(torch.nn.Module):
    """The size of the level is that of the image."""

    def forward(self, image: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        value = image.flatten(2).transpose(1, 2).unflatten(2, (2, 4))
        return msdeform.ms_deform_attn_from_offsets(value, [image.shape[2:]], references, offsets, logits)


@pytest.mark.parametrize("is_program", [True, False])
def test_sizes_that_follow_from_the_image_stay_open_where_locations_are_computed(
    is_program: bool, tmp_path: pathlib.Path
) -> None:
    """Also in a program of `torch.export` that was made before the target was known."""
    queries = torch.rand(1, 5, 1, 2), torch.randn(1, 5, 2, 1, 3, 2), torch.randn(1, 5, 2, 1, 3)
    given, other = ((torch.randn(1, 8, *size), *queries) for size in ((6, 9), (5, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_program:
            axis = torch.export.Dim.DYNAMIC
            program = torch.export.export(Sized(), given, dynamic_shapes=({2: axis, 3: axis}, None, None, None))
            table = msdeform.onnx.table("tensorrt")
            model = torch.onnx.export(program, dynamo=True, custom_translation_table=table, verbose=False).model_proto
        else:
            path, axes = str(tmp_path / "model.onnx"), {"image": {2: "height", 3: "width"}}
            names = ["image", "references", "offsets", "logits"]
            with msdeform.onnx.exporting("tensorrt"):
                torch.onnx.export(
                    Sized(), given, path, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes
                )
            model = onnx.load(path)
    assert nodes.count(model) == {"MultiscaleDeformableAttnPlugin_TRT": 1}
    assert_close(nodes.run(model, *other)[0], Sized()(*other), 1e-5)


class Reading(torch.nn.Module):
    """Shapes are an input."""

    def forward(self, value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return msdeform.ms_deform_attn(value, shapes, None, locations, weights)


def test_shapes_that_are_an_input_stay_one_where_nodes_read_them(tmp_path: pathlib.Path) -> None:
    case = make_case()
    given = (case.value, torch.tensor(case.shapes), case.locations, case.weights)
    expected = Reading()(*given)
    for target in ("msdeform", "mmdeploy", "tensorrt"):
        found = exported(Reading(), given, target, tmp_path / "model.onnx", 17, False)
        assert_close(nodes.run(found, *given)[0], expected, 1e-5, target)
    with pytest.raises(ValueError, match='"gridsample" needs level sizes'):
        exported(Reading(), given, "gridsample", tmp_path / "model.onnx", 17, False)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModuleNotFoundError, match="pip install onnxscript"):
        msdeform.onnx.table()


def test_importing_it_imports_nothing_else() -> None:
    program = (
        "import sys, msdeform.onnx; loaded = {name.partition('.')[0] for name in sys.modules}; "
        "assert not loaded & {'torch', 'onnx', 'onnxscript', 'onnxruntime'}, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# Functions that are patched -----------------------------------------------------------------------------------------


def test_patched_functions_keep_the_operator_where_an_export_can_take_it() -> None:
    module, case = framework(), make_case()

    class Layer(torch.nn.Module):
        def forward(self, value: Any, locations: Any, weights: Any) -> Any:
            return module.ms_deform_attn_core_pytorch(value, case.shapes, locations, weights)

    def graphs() -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(Layer(), case.tensors)
        programs = [torch.export.export(Layer(), case.tensors, strict=strict) for strict in (False, True)]
        return [str(traced.graph), *(str(program.graph) for program in programs)]

    with msdeform.patch():
        assert not any("msdeform" in graph for graph in graphs())
        with msdeform.onnx.exporting():
            assert all("msdeform.ms_deform_attn" in graph.replace("::", ".") for graph in graphs())
        assert not any("msdeform" in graph for graph in graphs()), "the context is over"


def test_a_table_decides_in_an_export_to_onnx() -> None:
    """Also one with translations of other operators in it; without one the original is exported."""
    module, case = framework(), make_case()

    class Layer(torch.nn.Module):
        def forward(self, value: Any, locations: Any, weights: Any) -> Any:
            return module.ms_deform_attn_core_pytorch(value, case.shapes, locations, weights)

    def found_with(table: Any) -> dict[str, int]:
        with warnings.catch_warnings(), msdeform.onnx.exporting():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Layer(), case.tensors, dynamo=True, custom_translation_table=table, verbose=False
            )
        return nodes.count(program.model_proto)

    with msdeform.patch():
        others = {torch.ops.aten.special_zeta.default: lambda self, other: self}
        assert found_with(others | msdeform.onnx.table("tensorrt")) == {"MultiscaleDeformableAttnPlugin_TRT": 1}
        assert found_with(others) == {"GridSample": 3}
