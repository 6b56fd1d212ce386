"""Measures the error of attention layers and a whole model in half precision: unpatched, patched, and fused.

    python benches/half_precision.py [--device cpu|cuda]       # a line for every row
    python benches/half_precision.py --table RECORD            # the table of docs/from-offsets.md from a record

The model is a small Deformable-DETR of transformers with random weights, rounded to the dtype. It is compared with the
same weights in float64. A layer is compared on the inputs that it received, so its row has only its own error.
`record.py --parts half_precision` keeps the rows.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msdeform
import torch
import zoo
from torch import Tensor, nn

FORMATS = {"f16": torch.float16, "bf16": torch.bfloat16}
# How a row was computed, and what `patch()` is told for it.
WAYS: dict[str, dict[str, bool] | None] = {"unpatched": None, "patched": {"fuse": False}, "fused": {"fuse": True}}
IMAGES = (zoo.Input(1, 256, 320), zoo.Input(1, 512, 640))


def build() -> Any:
    """The model, small, with offsets and weights that depend on the query."""
    from transformers import DeformableDetrConfig, DeformableDetrModel, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    torch.manual_seed(1)
    model = DeformableDetrModel(
        DeformableDetrConfig(
            use_timm_backbone=False,
            backbone=None,
            backbone_config=backbone,
            use_pretrained_backbone=False,
            d_model=64,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            num_queries=100,
        )
    ).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def relative_error(found: Tensor, exact: Tensor) -> float | None:
    """Relative L2; nothing where something is not finite."""
    error = float((found.double() - exact).norm() / exact.norm())
    return float(f"{error:.3g}") if math.isfinite(error) else None


def _exact(given: Any) -> Any:
    return given.double() if isinstance(given, Tensor) and given.is_floating_point() else given


class _Layers:
    """Compares every attention layer with its exact twin, as it is called."""

    def __init__(self, model: nn.Module, twin: nn.Module) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Tensor]] = []
        self.twin = twin
        for name, layer in model.named_modules():
            if type(layer).__name__.endswith("MultiscaleDeformableAttention"):
                layer.register_forward_hook(self._hook(name), with_kwargs=True)

    def _hook(self, name: str) -> Any:
        def keep(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            self.calls.append((name, arguments, named, output[0].clone()))

        return keep

    def compare(self) -> dict[str, float | None]:
        """The errors since the last time, by layer."""
        found = {}
        for name, arguments, named, output in self.calls:
            layer = self.twin.get_submodule(name)
            exact = layer(*map(_exact, arguments), **{key: _exact(each) for key, each in named.items()})[0]
            found[name] = relative_error(output, exact)
        self.calls.clear()
        return found


@torch.no_grad()
def measure(device: str, images: Sequence[zoo.Input] = IMAGES) -> Iterator[dict[str, Any]]:
    """One row per size, format and way."""
    msdeform.unpatch()
    model = build().to(device)
    for size in images:
        pixels = torch.randn(size.images, 3, size.height, size.width, generator=torch.Generator().manual_seed(2))
        for name, dtype in FORMATS.items():
            rounded = copy.deepcopy(model).to(dtype)
            twin, inputs = copy.deepcopy(rounded).double(), pixels.to(device, dtype)
            exact = twin(pixel_values=inputs.double()).last_hidden_state
            layers = _Layers(rounded, twin)
            for way, options in WAYS.items():
                if options is not None:
                    msdeform.patch("transformers", **options)
                try:
                    output = rounded(pixel_values=inputs).last_hidden_state
                finally:
                    msdeform.unpatch()
                yield {
                    "model": "Deformable-DETR, small",
                    **vars(size),
                    "device": device,
                    "dtype": name,
                    "way": way,
                    "layer_errors": layers.compare(),
                    "output_error": relative_error(output, exact),
                }


def worst(row: dict[str, Any]) -> float | None:
    """The error of the layer that has most of it; nothing where one is not finite."""
    errors = list(row["layer_errors"].values())
    return None if None in errors else max(errors)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What a page shows of them."""
    lines = ["| image | dtype | | worst layer | whole model |", "|---|---|---|---|---|"]

    def shown(error: float | None) -> str:
        return "not finite" if error is None else f"{error:.1e}"

    for row in rows:
        image = f"{row['height']} x {row['width']}"
        lines.append(
            f"| {image} | {row['dtype']} | {row['way']} | {shown(worst(row))} | {shown(row['output_error'])} |"
        )
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """Measures and prints, or prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--table", type=Path, metavar="RECORD", help="a python.json")
    arguments = parser.parse_args(given)
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text())["half_precision"]), end="")
        return 0
    for row in measure(arguments.device):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
