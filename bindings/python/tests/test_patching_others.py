"""Attention layers of packages that are too heavy for every run, as they come from PyPI, with and without the patch.

They are skipped where they are not installed. To run them:

    uv pip install libreyolo rtdetr mmengine pycocotools addict yapf termcolor timm supervision shapely
    uv pip install terminaltables six
    uv pip install --no-deps groundingdino-py mmcv-lite==2.1.0 mmdet
    pytest tests/test_patching_others.py tests/test_benches.py

The second file has a whole model of LibreYOLO and one of mmdet.

mmcv on PyPI is compiled when it is installed. mmcv-lite is its Python alone: the compiled half is replaced by an empty
module here, and what runs on a CPU is the package's own.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

import msdeform
import pytest
import torch
from oracle import assert_close
from patched_models import CountCalls
from torch import Tensor

SHAPES = [(8, 10), (4, 5), (2, 3)]
PIXELS = 106
GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _same_inputs() -> None:
    GENERATOR.manual_seed(3)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def boxes(levels: int) -> Tensor:
    return torch.rand(2, 7, levels, 4, generator=GENERATOR)


def of_rt_detr(layer: type[Any]) -> Callable[[], Tensor]:
    """RT-DETR 1 and 2: values as they come from the encoder."""
    module, given = layer(32, 4, 3, 2), (random(2, 7, 32), boxes(1), random(2, PIXELS, 32), SHAPES)
    return lambda: module(*given)


def of_d_fine(layer: type[Any]) -> Callable[[], Tensor]:
    """D-FINE and DEIM: values as a list of levels, points that differ."""
    module, values = layer(32, 4, 3, [2, 1, 3]), random(2, 4, 8, PIXELS)
    given = (random(2, 7, 32), boxes(1), values.split([80, 20, 6], dim=-1), SHAPES)
    return lambda: module(*given)


def of_mmcv(layer: type[Any]) -> Callable[[], Tensor]:
    """mmcv and Grounding DINO."""
    module = layer(32, 4, 3, 2).eval()
    named = {
        "query": random(7, 2, 32),
        "value": random(PIXELS, 2, 32),
        "identity": torch.zeros(7, 2, 32),
        "reference_points": boxes(3),
        "spatial_shapes": torch.tensor(SHAPES),
        "level_start_index": torch.tensor([0, 80, 100]),
    }
    return lambda: module(**named)


LAYERS = {
    "libreyolo.models.rtdetr.nn.MSDeformableAttention": of_rt_detr,
    "libreyolo.models.rtdetrv2.decoder.MSDeformableAttention": of_rt_detr,
    "libreyolo.models.dfine.decoder.MSDeformableAttention": of_d_fine,
    "libreyolo.models.deim.decoder.MSDeformableAttention": of_d_fine,
    "rtdetr.nn.decoder.MSDeformableAttention": of_rt_detr,
    "groundingdino.models.GroundingDINO.ms_deform_attn.MultiScaleDeformableAttention": of_mmcv,
    "mmcv.ops.multi_scale_deform_attn.MultiScaleDeformableAttention": of_mmcv,
}


class _Empty(types.ModuleType):
    """The compiled half of mmcv: everything is there and nothing works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    extension = _Empty("mmcv._ext")
    extension.__spec__ = importlib.machinery.ModuleSpec("mmcv._ext", None)
    monkeypatch.setitem(sys.modules, "mmcv._ext", extension)


@pytest.mark.parametrize("name", LAYERS, ids=lambda name: name.rpartition(".")[0])
def test_layers_give_the_same_with_and_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, _, layer = name.rpartition(".")
    top = package.partition(".")[0]
    pytest.importorskip(top)
    if top == "mmcv":
        without_the_extension(monkeypatch)
    msdeform.patch(top)
    call = LAYERS[name](getattr(importlib.import_module(package), layer))
    results = []
    for is_patched in (True, False):
        if not is_patched:
            msdeform.unpatch()
        with CountCalls() as count:
            results.append(call())
        assert count.forward == is_patched, msdeform.patched(verbose=True)
    assert_close(results[0], results[1], 1e-5)


def test_layers_of_mmdet_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mmcv")
    pytest.importorskip("mmengine")
    without_the_extension(monkeypatch)
    pytest.importorskip("mmdet", exc_type=ImportError)
    layers = importlib.import_module("mmdet.models.layers.transformer.deformable_detr_layers")
    msdeform.patch("mmdet")
    attention = {"embed_dims": 32, "num_heads": 4, "num_levels": 3, "dropout": 0.0}
    layer = layers.DeformableDetrTransformerEncoderLayer(
        self_attn_cfg={**attention, "batch_first": True}, ffn_cfg={"embed_dims": 32, "feedforward_channels": 48}
    ).eval()
    named = {
        "query": random(2, PIXELS, 32),
        "query_pos": random(2, PIXELS, 32),
        "key_padding_mask": torch.zeros(2, PIXELS, dtype=torch.bool),
        "spatial_shapes": torch.tensor(SHAPES),
        "level_start_index": torch.tensor([0, 80, 100]),
        "valid_ratios": torch.ones(2, 3, 2),
        "reference_points": torch.rand(2, PIXELS, 3, 2, generator=GENERATOR),
    }
    with CountCalls() as count:
        after = layer(**named)
    assert count.forward == 1
    msdeform.unpatch()
    assert_close(after, layer(**named), 1e-5)
