"""Compiling ahead, for an architecture: no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msdeform
import pytest
from msdeform._warm import Shape, _shapes

SMALL = Shape(2, 8, (2,))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MSDEFORM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MSDEFORM_KERNEL_PACK", "off")
    return tmp_path


@pytest.fixture
def compiling(cache: Path) -> Path:
    """The cache; skips without NVRTC. PyTorch for CUDA brings NVRTC, PyTorch for CPUs does not."""
    if msdeform.device_info()["cuda"]["nvrtc"]["missing"]:
        pytest.skip("NVRTC is not installed here")
    return cache


def test_what_was_compiled_is_found_the_second_time(compiling: Path) -> None:
    torch = pytest.importorskip("torch")
    arguments: dict[str, Any] = {"arch": "sm_90", "backward": False}
    first = msdeform.warm_up(SMALL, [torch.float32], **arguments)
    assert first["compiled"] == first["kernels"] > 0 and first["failed"] == []
    assert len(list(compiling.glob("*.cubin"))) == first["kernels"]
    assert first["arch"] == "sm_90a" and first["gpu"] is None and first["cache"] == str(compiling)
    second = msdeform.warm_up([SMALL, tuple(SMALL)], ["f32"], **arguments)
    assert (second["compiled"], second["found"]) == (0, first["kernels"])


def test_a_fused_layer_compiles_fused_kernels_only(
    compiling: Path,
) -> None:
    pytest.importorskip("torch")
    layer = msdeform.MSDeformAttn(16, 1, 2, 2)
    arguments: dict[str, Any] = {"arch": "sm_90", "backward": False, "dtypes": ["f32"]}
    # As a decoder with boxes has it: what is compiled for it is what the layer asks for, among others.
    boxes = msdeform.warm_up([(2, 8, [2], [], ["box_per_level"])], **arguments)
    assert boxes["compiled"] == boxes["kernels"] > 0 and boxes["failed"] == []
    found = msdeform.warm_up(layer, **arguments)
    assert found["found"] == boxes["kernels"] and found["compiled"] == found["kernels"] - boxes["kernels"] > 0
    again = msdeform.warm_up(torch_parent("encoder", layer), **arguments)
    assert again["compiled"] == 0 and 0 < again["kernels"] < found["kernels"]


def torch_parent(name: str, layer: Any) -> Any:
    import torch

    parent = torch.nn.Module()
    parent.add_module(name, layer)
    return parent


def test_layers_are_found_by_their_numbers_and_others_are_not() -> None:
    torch = pytest.importorskip("torch")
    own = torch.nn.Sequential(msdeform.MSDeformAttn(64, 2, 4, 3), torch.nn.Linear(4, 4))
    assert {shape[:3] for shape in _shapes(own)} == {(4, 16, (3, 3))}
    uneven = torch.nn.ModuleList([msdeform.MSDeformAttn(64, 3, 8, [3, 6, 3])])
    assert [shape[:3] for shape in _shapes(uneven)] == [(8, 8, (3, 6, 3))]
    with pytest.raises(ValueError, match="no deformable attention in this Linear"):
        msdeform.warm_up(torch.nn.Linear(2, 2), arch="sm_90")


def test_layers_of_packages_are_found_and_whole_layers_are_fused() -> None:
    pytest.importorskip("transformers")
    from attention_layers import CONFIG, HEADS, LEVELS, POINTS, WIDTH
    from transformers.models.d_fine import modeling_d_fine
    from transformers.models.deformable_detr import modeling_deformable_detr as deformable_detr

    layer = deformable_detr.DeformableDetrMultiscaleDeformableAttention(CONFIG, num_heads=HEADS, n_points=POINTS)
    fine = modeling_d_fine.DFineMultiscaleDeformableAttention(CONFIG)
    numbers = (HEADS, WIDTH // HEADS, (POINTS,) * LEVELS)
    assert [_shapes(each) for each in (layer, fine)] == [[Shape(*numbers)]] * 2
    points, both = ("point_per_level",), ("point_per_level", "box_per_level")
    with msdeform.patch("transformers"):
        assert _shapes(layer) == [Shape(*numbers, encoder=points, decoder=both)]
        assert _shapes(fine) == [Shape(*numbers, encoder=points, decoder=("box",))]
        assert _shapes(torch_parent("decoder", fine)) == [Shape(*numbers, decoder=("box",))]
        assert _shapes(torch_parent("encoder", layer)) == [Shape(*numbers, encoder=points)]
        fine.decoder_method = "discrete"
        assert _shapes(fine) == [Shape(*numbers)], "it is left to the original"
    with msdeform.patch("transformers", fuse=False):
        assert _shapes(layer) == [Shape(*numbers)]
    assert _shapes(layer) == [Shape(*numbers)]


@pytest.mark.parametrize("name", ["Deformable-DETR", "RT-DETR", "RT-DETRv2", "Mask2Former"])
def test_what_a_patched_model_calls_is_what_its_layers_were_said_to_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    import torch
    from msdeform.patching import fusing
    from patched_models import MODELS

    torch.manual_seed(1)
    model = MODELS[name][0]().eval()
    called: set[tuple[Any, ...]] = set()
    original = fusing.ms_deform_attn_from_offsets

    def watch(value: Any, shapes: Any, references: Any, offsets: Any, *rest: Any, **others: Any) -> Any:
        kind = {2: "point", 4: "box"}[references.shape[3]]
        is_encoder = offsets.shape[1] == value.shape[1]
        called.add((is_encoder, kind + ("_per_level" if references.shape[2] == len(shapes) else "")))
        return original(value, shapes, references, offsets, *rest, **others)

    with msdeform.patch("transformers"), torch.no_grad():
        # Patching tries layers, which are not the model's.
        monkeypatch.setattr(fusing, "ms_deform_attn_from_offsets", watch)
        model(pixel_values=torch.rand(1, 3, 64, 96))
        shapes = _shapes(model)
    said = {(True, each) for shape in shapes for each in shape.encoder}
    said |= {(False, each) for shape in shapes for each in shape.decoder}
    assert called and called <= said, (called, said)
    # Whether boxes are refined is decided elsewhere; all else is known.
    assert said - called <= {(False, "box_per_level")}, (called, said)


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
        ({"arch": "sm_90", "model_or_shapes": [(8, 32, (4,), ["boxes"])]}, '"boxes" are no references.*box_per_'),
        ({"arch": "sm_90", "model_or_shapes": [(8, 32, (4,), [{"anchors": 0}])]}, "anchors"),
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
