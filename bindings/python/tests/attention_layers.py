"""Attention layers of packages, small, with random projections; and calls of them."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

# Before ultralytics and rfdetr are imported.
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"})
os.environ.setdefault("HF_HUB_OFFLINE", "1")

LEVELS, HEADS, POINTS, WIDTH, QUERIES = 3, 4, 2, 32, 9
SHAPES = [(48, 64), (24, 32), (12, 16)]
PIXELS = sum(height * width for height, width in SHAPES)
MARK = b"MultiscaleDeformableAttention(nn.Module)"
# All that constructors of layers of transformers ask a configuration for.
CONFIG = SimpleNamespace(
    d_model=WIDTH,
    num_feature_levels=LEVELS,
    disable_custom_kernels=True,
    decoder_attention_heads=HEADS,
    decoder_n_levels=LEVELS,
    decoder_n_points=POINTS,
    decoder_offset_scale=0.4,
    decoder_method="default",
)
BY_NAME = {
    "config": CONFIG,
    "num_heads": HEADS,
    "n_heads": HEADS,
    "n_points": POINTS,
    "num_points": POINTS,
    "n_levels": LEVELS,
    "num_levels": LEVELS,
    "d_model": WIDTH,
    "embed_dim": WIDTH,
    "embed_dims": WIDTH,
    "dropout": 0.0,
    "batch_first": True,
}
# What a parameter of `forward` is given.
GIVEN = {
    "hidden_states": "query",
    "query": "query",
    "encoder_hidden_states": "pixels",
    "input_flatten": "pixels",
    "value": "pixels",
    "reference_points": "references",
    "refer_bbox": "references",
    "position_embeddings": "positions",
    "query_pos": "positions",
    "attention_mask": "mask",
    "input_padding_mask": "mask",
    "key_padding_mask": "mask",
    "value_mask": "mask",
    "spatial_shapes": "shapes",
    "input_spatial_shapes": "shapes",
    "spatial_shapes_list": "sizes",
    "input_spatial_shapes_hw": "sizes",
    "value_shapes": "sizes",
    "level_start_index": "starts",
    "input_level_start_index": "starts",
}


def layers_of_transformers() -> Iterator[type[nn.Module]]:
    """Read off the sources: every version has more of them."""
    spec = importlib.util.find_spec("transformers.models")
    assert spec is not None and spec.submodule_search_locations is not None
    for folder in spec.submodule_search_locations:
        for file in sorted(pathlib.Path(folder).glob("*/modeling_*.py")):
            if MARK in file.read_bytes():
                module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
                for name, kind in vars(module).items():
                    if name.endswith("MultiscaleDeformableAttention"):
                        yield kind


def layer_of(path: str) -> type[nn.Module]:
    module, _, name = path.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind: type[nn.Module] = getattr(importlib.import_module(module), name)
    return kind


DEFORMABLE_DETR = (
    "transformers.models.deformable_detr.modeling_deformable_detr.DeformableDetrMultiscaleDeformableAttention"
)
ULTRALYTICS = "ultralytics.nn.modules.transformer.MSDeformAttn"
RFDETR = "rfdetr.models.ops.modules.ms_deform_attn.MSDeformAttn"


def build(kind: type[nn.Module]) -> Any:
    names = list(inspect.signature(kind).parameters)
    torch.manual_seed(1)
    layer = kind(**{name: BY_NAME[name] for name in names if name in BY_NAME})
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "sampling_offsets" in name or "attention_weights" in name:
                parameter.copy_(torch.randn_like(parameter) * (1.0 if "bias" in name else 0.3))
    return layer.eval()


@dataclass
class Call:
    """A call of a layer, and what comes out of it."""

    layer: Any
    by_role: dict[str, Any]

    def to(self, dtype: torch.dtype, device: str = "cpu") -> Call:
        """The same numbers in another format or elsewhere, of a copy of the layer."""

        def moved(given: Any) -> Any:
            if not isinstance(given, Tensor):
                return given
            found = given.detach().to(device)
            return found.to(dtype).requires_grad_(given.requires_grad) if found.is_floating_point() else found

        by_role = {role: moved(given) for role, given in self.by_role.items()}
        return Call(copy.deepcopy(self.layer).to(device, dtype), by_role)

    @property
    def named(self) -> dict[str, Any]:
        function = inspect.unwrap(type(self.layer).forward)
        names = [name for name in inspect.signature(function).parameters if name in GIVEN]
        return {name: self.by_role[GIVEN[name]] for name in names if GIVEN[name] in self.by_role}

    def __call__(self) -> Any:
        return self.layer(**self.named)

    @property
    def output(self) -> Tensor:
        found = self()
        result: Tensor = found[0] if isinstance(found, tuple) else found
        return result

    def everything(self) -> dict[str, Tensor]:
        """Output, weights and all gradients."""
        found = self()
        outputs = list(found) if isinstance(found, tuple) else [found]
        leaves = {
            **dict(self.layer.named_parameters()),
            **{
                role: each
                for role, each in self.by_role.items()
                if isinstance(each, Tensor) and each.requires_grad and role in map(GIVEN.get, self.named)
            },
        }
        generator = torch.Generator().manual_seed(3)
        directions = [torch.rand(each.shape, generator=generator).to(each) for each in outputs]
        gradients = torch.autograd.grad(outputs, list(leaves.values()), directions)
        names = ["output", "weights"][: len(outputs)]
        return {**dict(zip(names, outputs, strict=True)), **dict(zip(leaves, gradients, strict=True))}


def make_call(kind: type[nn.Module], coordinates: int = 4, is_per_level: bool = False, is_masked: bool = False) -> Call:
    generator = torch.Generator().manual_seed(2)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).requires_grad_()

    by_role: dict[str, Any] = {
        "query": uniform(2, QUERIES, WIDTH),
        "pixels": uniform(2, PIXELS, WIDTH),
        "references": uniform(2, QUERIES, LEVELS if is_per_level else 1, coordinates),
        "positions": uniform(2, QUERIES, WIDTH),
        "shapes": torch.tensor(SHAPES),
        "sizes": SHAPES,
        "starts": torch.tensor([0, 3072, 3840]),
    }
    if is_masked:
        by_role["mask"] = torch.rand(2, PIXELS, generator=generator) < 0.7
    return Call(build(kind), by_role)


def runs(call: Call) -> bool:
    """Whether the original takes it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except (RuntimeError, ValueError):
        return False
    return True
