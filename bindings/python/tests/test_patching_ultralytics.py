"""RT-DETR of ultralytics under the patch: predictor, validator, trainer, exports.

Current versions and old ones alike: put an old one before the environment's own to test it,
`uv pip install --no-deps --target old ultralytics==8.2.103; PYTHONPATH=old pytest tests/test_patching_ultralytics.py`.
"""

from __future__ import annotations

import copy
import os
import pathlib
import tempfile
import warnings
from typing import Any

import msdeform
import numpy as np
import pytest
import torch
from oracle import assert_close
from patched_models import CountCalls, train
from PIL import Image

# Before the import: it writes its settings, looks for a network and would install what it misses.
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"})
ultralytics = pytest.importorskip("ultralytics")

NAME = "ultralytics.nn.modules.utils.multi_scale_deformable_attn_pytorch"
# A small model: three levels, two layers of the decoder.
CONFIG = """
nc: 3
scales:
  l: [1.0, 1.0, 1024]
backbone:
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [24, 3, 2]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, Conv, [48, 3, 2]]
  - [-1, 1, Conv, [64, 3, 2]]
head:
  - [[2, 3, 4], 1, RTDETRDecoder, [nc, 32, 20, 4, 4, 2, 64]]
"""
SETTINGS = {"imgsz": 64, "device": "cpu", "workers": 0, "plots": False, "verbose": False, "batch": 2}


@pytest.fixture
def config(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "rtdetr-small.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """Four images with a box each."""
    random = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (tmp_path / kind).mkdir()
    for index in range(4):
        pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index}.png")
        (tmp_path / "labels" / f"{index}.txt").write_text(f"{index % 3} 0.5 0.5 0.4 0.3\n")
    path = tmp_path / "data.yaml"
    path.write_text(f"path: {tmp_path}\ntrain: images\nval: images\nnames: [a, b, c]\n")
    return path


def small(config: pathlib.Path) -> Any:
    torch.manual_seed(1)
    model = ultralytics.RTDETR(str(config))
    model.model.nc = 3  # As the trainer sets it.
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "img": torch.rand(2, 3, 64, 64, generator=generator),
        "cls": torch.tensor([[0.0], [2.0], [1.0]]),
        "bboxes": torch.rand(3, 4, generator=generator) * 0.4 + 0.2,
        "batch_idx": torch.tensor([0.0, 0.0, 1.0]),
    }


def loss(network: Any) -> torch.Tensor:
    device = next(network.parameters()).device
    result: torch.Tensor = network.loss({key: tensor.to(device) for key, tensor in batch().items()})[0]
    return result.sum()


def test_outputs_and_gradients_are_those_of_before(config: pathlib.Path) -> None:
    small_one = small(config).model
    assert msdeform.patch() == msdeform.patched() and NAME in msdeform.patched()
    results = []
    for is_patched in (True, False):
        if not is_patched:
            msdeform.unpatch()
        network = copy.deepcopy(small_one).eval()  # A training step changes statistics.
        with CountCalls() as count:
            output = network(batch()["img"])[0]
        assert count.forward == (2 if is_patched else 0)
        network.train()
        torch.manual_seed(7)  # Queries for denoising are drawn.
        loss(network).backward()
        gradients = [parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]
        results.append((output.detach(), torch.cat(gradients)))
    assert_close(results[0][0], results[1][0], 1e-4)
    assert_close(results[0][1], results[1][1], 1e-3)


def test_predictor_validator_and_trainer_work(config: pathlib.Path, data: pathlib.Path) -> None:
    msdeform.patch("ultralytics")
    model = small(config)
    with CountCalls() as count:
        assert len(model.predict(np.zeros((64, 64, 3), np.uint8), imgsz=64, device="cpu", verbose=False)) == 1
    assert count.forward > 0
    model.val(data=str(data), project=str(data.parent), **SETTINGS)
    model.train(data=str(data), project=str(data.parent), epochs=1, amp=False, val=False, **SETTINGS)
    saved = next(data.parent.rglob("last.pt"))
    msdeform.unpatch()
    assert len(ultralytics.RTDETR(str(saved)).predict(np.zeros((64, 64, 3), np.uint8), imgsz=64, verbose=False)) == 1


def test_exports_stay_on_their_own_path(config: pathlib.Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    msdeform.patch()
    network = small(config).model.eval()
    network.model[-1].export = True
    pixels = torch.rand(1, 3, 64, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network(pixels)
        traced = torch.jit.trace(network, (pixels,), strict=False)
        assert "msdeform" not in str(traced.inlined_graph) and "grid_sampler" in str(traced.inlined_graph)
        for is_dynamo in (False, True):
            path = config.with_suffix(".onnx")
            torch.onnx.export(network, (pixels,), str(path), dynamo=is_dynamo, opset_version=18 if is_dynamo else 17)
            nodes = [node.op_type for node in onnx.load(str(path)).graph.node]
            assert nodes.count("GridSample") == 2 * 3


def test_two_training_runs_give_the_same_bits(config: pathlib.Path) -> None:
    msdeform.patch("ultralytics")
    runs = [train(lambda: small(config).model.train(), loss) for _ in range(2)]
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])
