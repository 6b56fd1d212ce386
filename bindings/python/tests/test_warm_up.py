"""Compiling ahead, for an architecture: no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msdeform
import pytest
from msdeform._warm import Shape, _shapes

SMALL = Shape(2, 8, (2,), (10,))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MSDEFORM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MSDEFORM_KERNEL_PACK", "off")
    return tmp_path


def test_what_was_compiled_is_found_the_second_time(cache: Path) -> None:
    if msdeform.device_info()["cuda"]["nvrtc"]["missing"]:
        pytest.skip("NVRTC is not installed here")
    torch = pytest.importorskip("torch")
    arguments: dict[str, Any] = {"arch": "sm_90", "backward": False}
    first = msdeform.warm_up(SMALL, [torch.float32], **arguments)
    assert first["compiled"] == first["kernels"] > 0 and first["failed"] == []
    assert len(list(cache.glob("*.cubin"))) == first["kernels"]
    assert first["arch"] == "sm_90a" and first["gpu"] is None and first["cache"] == str(cache)
    second = msdeform.warm_up([SMALL, tuple(SMALL)], ["f32"], **arguments)
    assert (second["compiled"], second["found"]) == (0, first["kernels"])


def test_layers_are_found_by_their_numbers_and_others_are_not() -> None:
    torch = pytest.importorskip("torch")
    own = torch.nn.Sequential(msdeform.MSDeformAttn(64, 2, 4, 3), torch.nn.Linear(4, 4))
    assert {shape[:3] for shape in _shapes(own)} == {(4, 16, (3, 3))}
    uneven = torch.nn.ModuleList([msdeform.MSDeformAttn(64, 3, 8, [3, 6, 3])])
    assert [shape[:3] for shape in _shapes(uneven)] == [(8, 8, (3, 6, 3))]
    with pytest.raises(ValueError, match="no deformable attention in this Linear"):
        msdeform.warm_up(torch.nn.Linear(2, 2), arch="sm_90")


def test_layers_of_packages_are_found() -> None:
    pytest.importorskip("transformers")
    from attention_layers import CONFIG, HEADS, LEVELS, POINTS, WIDTH
    from transformers.models.d_fine import modeling_d_fine
    from transformers.models.deformable_detr import modeling_deformable_detr as deformable_detr

    layer = deformable_detr.DeformableDetrMultiscaleDeformableAttention(CONFIG, num_heads=HEADS, n_points=POINTS)
    assert [shape[:3] for shape in _shapes(layer)] == [(HEADS, WIDTH // HEADS, (POINTS,) * LEVELS)]
    fine = modeling_d_fine.DFineMultiscaleDeformableAttention(CONFIG)
    assert [shape[:3] for shape in _shapes(fine)] == [(HEADS, WIDTH // HEADS, (POINTS,) * LEVELS)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"arch": "sm_70"}, "known: sm_80"),
        ({"arch": "sm_90", "dtypes": ["f64"]}, "f32, f16, bf16"),
        ({"arch": "sm_90", "dtypes": []}, "dtypes"),
        ({"arch": "sm_90", "threads": 0}, "threads"),
        ({"device": "cpu"}, "cuda:0"),
        ({"arch": "sm_90", "model_or_shapes": [(8, 32, ())]}, "points of every level"),
        ({"arch": "sm_90", "model_or_shapes": [(0, 32, (4,))]}, "heads"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], words: str, cache: Path) -> None:
    with pytest.raises(ValueError, match=words):
        msdeform.warm_up(**{"model_or_shapes": SMALL, **arguments})
    assert list(cache.iterdir()) == []


def test_without_a_gpu_an_architecture_is_asked_for(cache: Path) -> None:
    if msdeform.device_info()["cuda"]["driver"]:
        pytest.skip("this machine has a driver")
    with pytest.raises(RuntimeError, match="sm_90"):
        msdeform.warm_up(SMALL)


def test_a_cache_that_keeps_nothing_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSDEFORM_CACHE_DIR", "")
    with pytest.raises(RuntimeError, match="MSDEFORM_CACHE_DIR"):
        msdeform.warm_up(SMALL, arch="sm_90")
