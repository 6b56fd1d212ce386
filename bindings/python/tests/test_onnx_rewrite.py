"""The attention in exported models: found, rewritten, and the same in ONNX Runtime."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msdeform.onnx
import numpy as np
import pytest
import torch
from patched_models import deformable_detr, rt_detr
from torch import Tensor

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "crates/msdeform-onnx/fixtures"
# By both exporters; packages that write `GridSample`, and those that write gathers.
FIXTURES, GATHERED = (
    sorted(path for name in names for path in FOLDER.glob(f"{name}_[dt]*.onnx"))
    for names in (("point_lists", "rfdetr", "transformers", "ultralytics"), ("lightly", "rfdetr_gather"))
)


def run(model: bytes, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def random_inputs(model: bytes, **sizes: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {
        item.name: [dim.dim_value or sizes[dim.dim_param] for dim in item.type.tensor_type.shape.dim]
        for item in onnx.load_from_string(model).graph.input
    }
    return {name: random.uniform(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def compare(before: bytes, after: bytes, inputs: dict[str, Any]) -> None:
    onnx.checker.check_model(after)
    for found, expected in zip(run(after, inputs), run(before, inputs), strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def round_trip(model: bytes, sites: int) -> bytes:
    """Every site as one node and back as standard operators, which ONNX Runtime runs without a library."""
    single = msdeform.onnx.rewrite(model, to="msdeform")
    assert single.left == [] and len(single.rewritten) == sites
    assert len(single.checked) == sites, "each site has run in ONNX Runtime"
    operators = [node.op_type for node in onnx.load_from_string(single.model).graph.node]
    assert operators.count("MSDeformAttn") == sites and "GridSample" not in operators
    standard = msdeform.onnx.rewrite(single.model, to="gridsample")
    assert standard.left == [] and len(standard.checked) == sites
    return standard.model


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_models_give_the_same_after_a_round_trip_whatever_the_open_sizes(path: Path) -> None:
    model = path.read_bytes()
    after = round_trip(model, 1)
    for batch, queries in ((1, 1), (3, 7)):
        compare(model, after, random_inputs(model, batch=batch, queries=queries))


@pytest.mark.parametrize("path", FIXTURES + GATHERED, ids=lambda path: path.stem)
def test_gathers_give_the_same_whatever_the_open_sizes(path: Path) -> None:
    model = path.read_bytes()
    report = msdeform.onnx.rewrite(model, to="gather", rank=4)
    assert report.left == [] and len(report.checked) == 2, "the site has run in ONNX Runtime before and after"
    assert "GridSample" not in {node.op_type for node in onnx.load_from_string(report.model).graph.node}
    for batch, queries in ((1, 1), (3, 7)):
        compare(model, report.model, random_inputs(model, batch=batch, queries=queries))


def test_gathers_need_no_newer_opset_than_13(tmp_path: Path) -> None:
    single = onnx.load_from_string(msdeform.onnx.rewrite(FIXTURES[0], to="msdeform").model)
    for opset in single.opset_import:
        if opset.domain == "":
            opset.version = 13
    report = msdeform.onnx.rewrite(single, to="gather")
    onnx.checker.check_model(report.model, full_check=True)
    assert len(report.checked) == 1
    old = msdeform.onnx.rewrite(single, to="gridsample")
    assert "choose the form gather" in old.left[0]["reason"]


def test_runtimes_choose_forms_and_give_reasons() -> None:
    path = next(path for path in FIXTURES if path.stem == "point_lists_dynamo")
    forms = {"tensorrt": "gather", "ort-web": "gather", "coreml": "gather", "ort": "msdeform", "openvino": None}
    for runtime, form in forms.items():
        report = msdeform.onnx.rewrite(path, runtime=runtime)  # type: ignore[arg-type]
        assert report.runtime == runtime and report.reason
        assert [site["to"] for site in report.rewritten] == ([form] if form else []), runtime
    with pytest.raises(TypeError, match="a form as `to` or a runtime as `runtime`"):
        msdeform.onnx.rewrite(path)
    with pytest.raises(TypeError, match="and not both"):
        msdeform.onnx.rewrite(path, to="gather", runtime="ort")
    with pytest.raises(ValueError, match="unknown runtime `tflite`"):
        msdeform.onnx.rewrite(path, runtime="tflite")  # type: ignore[arg-type]


def test_there_are_fixtures() -> None:
    assert len(FIXTURES) == 8 and len(GATHERED) == 4


def export(model: Any, pixels: Tensor, path: Path) -> bytes:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (pixels,), str(path), dynamo=False, opset_version=16, input_names=["pixels"])
    return path.read_bytes()


class First(torch.nn.Module):
    """A model's last hidden state alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixel_values=pixels).last_hidden_state


def ultralytics_model() -> Any:
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
    os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"})
    pytest.importorskip("ultralytics")
    from test_patching_ultralytics import CONFIG
    from ultralytics.nn.tasks import RTDETRDetectionModel

    path = Path(tempfile.mkdtemp()) / "rtdetr-small.yaml"
    path.write_text(CONFIG)
    model = RTDETRDetectionModel(str(path), nc=3, verbose=False).eval()
    model.model[-1].export = True
    return model


class RfDetrLayer(torch.nn.Module):
    """The attention layer of rfdetr in the form that it exports, on pixels of its own."""

    def __init__(self) -> None:
        super().__init__()
        from test_patching_rfdetr import layer

        self.layer = layer()
        self.layer.export()

    def forward(self, pixels: Tensor) -> Tensor:
        from test_patching_rfdetr import SHAPES

        query = pixels[:, :7]
        boxes = query[:, :, None, :4].sigmoid().expand(-1, -1, 2, -1)
        shapes, starts = torch.tensor(SHAPES), torch.tensor([0, 80])
        return self.layer(query, boxes, pixels, shapes, starts, input_spatial_shapes_hw=SHAPES)


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], int]] = {
    "RT-DETR": (lambda: First(rt_detr()), (1, 3, 64, 64), 2),
    "RT-DETRv2": (lambda: First(rt_detr("RTDetrV2")), (1, 3, 64, 64), 2),
    "ultralytics": (ultralytics_model, (1, 3, 64, 64), 2),
    "rfdetr": (RfDetrLayer, (2, 100, 32), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_whole_models_of_the_packages_give_the_same_after_a_round_trip(name: str, tmp_path: Path) -> None:
    build, shape, sites = MODELS[name]
    pytest.importorskip({"ultralytics": "ultralytics", "rfdetr": "rfdetr"}.get(name, "transformers"))
    torch.manual_seed(1)
    pixels = torch.rand(shape)
    model = export(build(), pixels, tmp_path / "model.onnx")
    assert msdeform.onnx.inspect(model)["left"] == []
    compare(model, round_trip(model, sites), {"pixels": pixels.numpy()})


def test_locations_in_double_become_nodes_that_run(tmp_path: Path) -> None:
    """Those of Deformable-DETR's encoder, by TorchScript: ONNX Runtime has no `GridSample` for them."""
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    # Of a level with one row the exporter writes `linspace` as a division by zero, and its locations are NaN.
    network, pixels = First(deformable_detr()), torch.rand(1, 3, 128, 160)
    model = export(network, pixels, tmp_path / "model.onnx")
    inputs = {"pixels": pixels.numpy()}
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, match="GridSample"):
        run(model, inputs)
    report = msdeform.onnx.rewrite(model, to="msdeform")
    assert report.left == [] and len(report.rewritten) == 4
    assert len(report.checked) == 2, "ONNX Runtime runs the decoder's"
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(msdeform.onnx.library_path())
    session = onnxruntime.InferenceSession(report.model, options, providers=["CPUExecutionProvider"])
    results = {"msdeform": session.run(None, inputs)[0]}
    for form in ("gridsample", "gather"):
        standard = msdeform.onnx.rewrite(model, to=form)  # type: ignore[arg-type]
        assert standard.left == [] and standard.rewritten
        results[form] = run(standard.model, inputs)[0]
    with torch.no_grad():
        expected = network(pixels).numpy()
    for form, found in results.items():
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 1e-5, form


def test_a_model_without_attention_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = export(torch.nn.Conv2d(3, 4, 3), torch.rand(1, 3, 8, 8), path)
    report = msdeform.onnx.rewrite(path, to="tensorrt", output=tmp_path / "same.onnx")
    assert not report.changed and report.model == model
    assert (tmp_path / "same.onnx").read_bytes() == model


def test_a_model_is_a_path_bytes_or_a_proto_and_never_its_own_output(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(FIXTURES[0].read_bytes())
    found = [msdeform.onnx.inspect(form) for form in (path, str(path), path.read_bytes(), onnx.load(path))]
    assert all(len(one["sites"]) == 1 for one in found)
    with pytest.raises(ValueError, match="`output` is the file of `model`"):
        msdeform.onnx.rewrite(path, to="msdeform", output=path)
    with pytest.raises(TypeError, match=r"a path, bytes or an onnx\.ModelProto"):
        msdeform.onnx.inspect(3)
    with pytest.raises(ValueError, match="unknown form `tensorflow`"):
        msdeform.onnx.rewrite(path, to="tensorflow")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no ONNX model"):
        msdeform.onnx.inspect(b"abc")


def test_weights_in_other_files_keep_working(tmp_path: Path) -> None:
    torch.manual_seed(1)
    pixels = torch.rand(2, 100, 32)
    pytest.importorskip("rfdetr")
    model = onnx.load_from_string(export(RfDetrLayer(), pixels, tmp_path / "whole.onnx"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    report = msdeform.onnx.rewrite(path, to="msdeform", output=tmp_path / "single.onnx")
    assert report.external_files == ["weights.bin"]
    back = msdeform.onnx.rewrite(tmp_path / "single.onnx", to="gridsample", output=tmp_path / "standard.onnx")
    assert back.changed
    inputs = {"pixels": pixels.numpy()}
    for found, expected in zip(run(str(tmp_path / "standard.onnx"), inputs), run(str(path), inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(ValueError, match=r"weights in weights\.bin"):
        msdeform.onnx.rewrite(path, to="msdeform", output=elsewhere / "single.onnx")
    (tmp_path / "weights.bin").rename(tmp_path / "moved.bin")
    with pytest.raises(FileNotFoundError, match=r"weights in weights\.bin, which is not in its folder"):
        msdeform.onnx.rewrite(path, to="gather", output=tmp_path / "gather.onnx")
    assert not (tmp_path / "gather.onnx").exists()


@pytest.mark.parametrize(
    "references, components, attributes",
    [
        (2, 2, {}),
        (1, 2, {"softmax": 0}),
        (1, 4, {"offset_scale": 0.25}),
        (2, 4, {}),
        (3, 2, {"anchors": 1}),
        (2, 2, {"points": [4, 2]}),
    ],
)
def test_offsets_and_logits_are_spelled_out(references: int, components: int, attributes: dict[str, Any]) -> None:
    shapes, points = [(5, 4), (3, 2)], attributes.get("points", [3, 3])
    samples = sum(points)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "value": torch.randn(2, 26, 2, 4, generator=generator),
        "references": torch.rand(2, 7, references, components, generator=generator),
        "offsets": torch.randn(2, 7, 2, samples, 2, generator=generator),
        "logits": torch.randn(2, 7, 2, samples, generator=generator),
    }
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    graph = helper.make_graph(
        [
            helper.make_node(
                "MSDeformAttnFromOffsets",
                ["value", "shapes", "starts", "references", "offsets", "logits"],
                ["output"],
                domain="msdeform",
                **attributes,
            )
        ],
        "offsets",
        [helper.make_tensor_value_info(name, 1, ["n", *tensor.shape[1:]]) for name, tensor in tensors.items()],
        [helper.make_tensor_value_info("output", 1, ["n", 7, 8])],
        [
            numpy_helper.from_array(np.array(shapes, np.int64), "shapes"),
            numpy_helper.from_array(np.array([0, 20], np.int64), "starts"),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("msdeform", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    report = msdeform.onnx.rewrite(model, to="gridsample")
    assert report.left == [] and len(report.checked) == 1
    expected = msdeform.ms_deform_attn_from_offsets(
        tensors["value"],
        shapes,
        tensors["references"],
        tensors["offsets"],
        tensors["logits"],
        points=points,
        offset_scale=attributes.get("offset_scale", 0.5),
        anchors=bool(attributes.get("anchors", 0)),
        softmax=bool(attributes.get("softmax", 1)),
    )
    (found,) = run(report.model, {name: tensor.numpy() for name, tensor in tensors.items()})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)
