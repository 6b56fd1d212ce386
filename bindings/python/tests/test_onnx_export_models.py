"""Models of transformers, ultralytics and rfdetr under the patch, exported with their operator: nodes and results."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import warnings
from typing import Any

import msdeform
import msdeform.onnx
import pytest
import torch
from oracle import assert_close
from patched_models import MODELS
from torch import Tensor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
# ONNX Runtime may be missing too.
nodes = pytest.importorskip("onnx_nodes", exc_type=ImportError)
onnxruntime_errors = nodes.onnxruntime.capi.onnxruntime_pybind11_state


class Wrapped(torch.nn.Module):
    """A model whose output is a tensor."""

    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model = model
        self.output = output

    def forward(self, pixels: Tensor) -> Tensor:
        hidden: Tensor = getattr(self.model(pixel_values=pixels), self.output)
        return hidden


def perturbed(model: Any) -> Any:
    """Random weights everywhere: new models look straight ahead."""
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model.eval()


def exported(model: Any, pixels: Tensor, path: pathlib.Path) -> Any:
    """By TorchScript, as ultralytics and rfdetr do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (pixels,), str(path), dynamo=False, opset_version=17)
    return onnx.load(str(path))


def compare(model: Any, pixels: Tensor, package: str, target: str, path: pathlib.Path) -> dict[str, int]:
    """Exports with and without the patch agree; returns the nodes of the former.

    With each other and not with PyTorch: the models' own operations (`topk` of almost equal scores) may differ. Only
    where ONNX Runtime does not run the export without the patch, with PyTorch.
    """
    with torch.no_grad():
        expected = [model(pixels)]
    before = exported(model, pixels, path)
    assert set(nodes.count(before)) == {"GridSample"}
    assert msdeform.patch(package)
    with msdeform.onnx.exporting(target):  # type: ignore[arg-type]
        after = exported(model, pixels, path)
    with contextlib.suppress(onnxruntime_errors.NotImplemented):
        expected = nodes.run(before, pixels)
    for found, wanted in zip(nodes.run(after, pixels), expected, strict=True):
        assert_close(found, wanted, 1e-4)
    found_nodes: dict[str, int] = nodes.count(after)
    return found_nodes


def test_deformable_detr_by_torch_export() -> None:
    pytest.importorskip("transformers")
    make, output = MODELS["Deformable-DETR"]
    model = Wrapped(perturbed(make()), output)
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(pixels)
    assert msdeform.patch("transformers")
    table = msdeform.onnx.table("msdeform")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (pixels,), dynamo=True, custom_translation_table=table, verbose=False)
    found = nodes.count(program.model_proto)
    assert found == {"MSDeformAttnFromOffsets": 4}, "two whole layers of the encoder, two of the decoder"
    assert_close(nodes.run(program.model_proto, pixels)[0], expected, 1e-4)


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("RT-DETRv2", "gridsample", {"GridSample": 6}),
    ],
)
def test_models_of_transformers_by_torchscript(
    name: str, target: str, expected: dict[str, int], tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("transformers")
    make, output = MODELS[name]
    model = Wrapped(perturbed(make()), output)
    assert compare(model, torch.randn(2, 3, 64, 64), "transformers", target, tmp_path / "model.onnx") == expected


def test_points_per_level_of_d_fine(tmp_path: pathlib.Path) -> None:
    """RT-DETRv2's function with another number of points on each level, as D-FINE calls it."""
    modeling = pytest.importorskip("transformers.models.d_fine.modeling_d_fine")
    shapes, points = [(8, 8), (4, 4)], [3, 2]

    class Layer(torch.nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            value = pixels.view(1, 80, 4, 8)
            locations = pixels.view(-1)[:400].view(1, 10, 4, 5, 2)
            weights = pixels.view(-1)[400:600].view(1, 10, 4, 5).softmax(-1)
            output: Tensor = modeling.multi_scale_deformable_attention_v2(value, shapes, locations, weights, points)
            return output

    found = compare(Layer(), torch.rand(1, 80, 32), "transformers", "msdeform", tmp_path / "model.onnx")
    assert found == {"MSDeformAttn": 1}
    model = onnx.load(str(tmp_path / "model.onnx"))
    node = next(node for node in model.graph.node if node.op_type == "MSDeformAttn")
    assert [(attribute.name, list(attribute.ints)) for attribute in node.attribute] == [("points", points)]


def test_ultralytics(tmp_path: pathlib.Path) -> None:
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
    os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"})
    pytest.importorskip("ultralytics")
    from test_patching_ultralytics import CONFIG, small

    config = tmp_path / "rtdetr-small.yaml"
    config.write_text(CONFIG)
    network = perturbed(small(config).model)
    network.model[-1].export = True
    pixels = torch.rand(1, 3, 64, 64)
    network(pixels)
    found = compare(network, pixels, "ultralytics", "tensorrt", tmp_path / "model.onnx")
    assert found == {"MultiscaleDeformableAttnPlugin_TRT": 2}


def test_rfdetr(tmp_path: pathlib.Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("rfdetr")
    from test_patching_rfdetr import build_nano

    torch.manual_seed(4)
    model = perturbed(build_nano())
    model.export()
    found = compare(model, torch.rand(1, 3, 64, 64), "rfdetr", "tensorrt", tmp_path / "model.onnx")
    assert set(found) == {"MultiscaleDeformableAttnPlugin_TRT"}
