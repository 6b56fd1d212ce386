"""What the patch changes in whole models: time and peak memory before and after, and how far the results move.

    python benches/models.py

Deformable-DETR and RT-DETR with ResNet-50 and Mask2Former with Swin-T at usual sizes of images, with random weights so
that nothing is downloaded. "Before" is what transformers does without a compiled kernel: `grid_sample` per level.
Both ways take turns, round after round, so that a machine that gets slower slows down both.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msdeform
import torch
from torch import Tensor

ROUNDS, STEPS, WARM_UP = 2, 3, 1
DTYPES = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}

# Relative L2 of output and gradients, patched against unpatched in the same format. In float32 they differ by rounding
# alone, which Mask2Former's masks, decided by a threshold, magnify in the gradients. Under autocast both round in every
# layer, each in its own places: they may differ by twice what autocast itself changes in the unpatched model, and never
# by more than a tenth.
BOUNDS, ROOM, MOST = (1e-3, 3e-2), 2.0, 0.1


@dataclass(frozen=True)
class Model:
    """A model and the input it is usually given."""

    build: Callable[[], Any]
    output: str
    images: int
    height: int
    width: int


def _deformable_detr() -> Any:
    from transformers import DeformableDetrConfig, DeformableDetrModel, ResNetConfig

    backbone = ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    return DeformableDetrModel(
        DeformableDetrConfig(
            use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone
        )
    )


def _rt_detr() -> Any:
    from transformers import RTDetrConfig, RTDetrModel

    return RTDetrModel(RTDetrConfig(num_denoising=0))


def _mask2former() -> Any:
    from transformers import Mask2FormerConfig, Mask2FormerModel

    return Mask2FormerModel(Mask2FormerConfig())


MODELS = {
    "Deformable-DETR": Model(_deformable_detr, "last_hidden_state", 2, 800, 1066),
    "RT-DETR": Model(_rt_detr, "last_hidden_state", 4, 640, 640),
    "Mask2Former": Model(_mask2former, "transformer_decoder_last_hidden_state", 1, 1024, 1024),
}


def _normalise(network: Any, pixels: Tensor) -> None:
    """Gives every batch normalisation the statistics of these images. With those of a fresh model activations grow from
    layer to layer, out of the range of float16."""

    def adopt(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        norm.running_mean.copy_(inputs[0].mean(dim=(0, 2, 3)))
        norm.running_var.copy_(inputs[0].var(dim=(0, 2, 3)))

    norms = [module for module in network.modules() if getattr(module, "running_var", None) is not None]
    hooks = [norm.register_forward_pre_hook(adopt) for norm in norms]
    with torch.no_grad():
        network(pixel_values=pixels)
    for hook in hooks:
        hook.remove()


def _infer(network: Any, model: Model, pixels: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (getattr(network(pixel_values=pixels), model.output),)


def _train(network: Any, model: Model, pixels: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward; the optimizer would be the same on both sides."""
    network.zero_grad()
    output = getattr(network(pixel_values=pixels), model.output)
    # Not the square: outputs are normalised, their sum of squares hardly depends on anything.
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
    (output * direction).sum().backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return output.detach(), torch.cat([gradient.flatten() for gradient in gradients])


PASSES: dict[str, Callable[[Any, Model, Tensor], tuple[Tensor, ...]]] = {
    "inference": _infer,
    "training": _train,
}


def _relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative L2; NaN stays NaN, which no bound admits."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _set_patch(is_on: bool) -> None:
    if is_on:
        msdeform.patch("transformers")
    else:
        msdeform.unpatch()


def _measure_one(name: str, model: Model, network: Any, pixels: Tensor, work: str) -> Iterator[dict[str, Any]]:
    """One row per format."""
    exact: tuple[Tensor, ...] = ()
    for dtype, autocast in DTYPES.items():
        samples: dict[bool, list[float]] = {False: [], True: []}
        peaks = {False: 0.0, True: 0.0}
        results: dict[bool, tuple[Tensor, ...]] = {}

        def step(autocast: torch.dtype | None = autocast) -> tuple[Tensor, ...]:
            with nullcontext() if autocast is None else torch.autocast("cuda", dtype=autocast):
                return PASSES[work](network, model, pixels)

        for turn in range(ROUNDS):
            for is_patched in (False, True):
                _set_patch(is_patched)
                if turn == 0:
                    for _ in range(WARM_UP):
                        results[is_patched] = step()
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                for _ in range(STEPS):
                    start = time.perf_counter()
                    step()
                    torch.cuda.synchronize()
                    samples[is_patched].append(round((time.perf_counter() - start) * 1e3, 4))
                peaks[is_patched] = max(peaks[is_patched], torch.cuda.max_memory_allocated() / 2**20)
        exact = exact or results[False]
        row: dict[str, Any] = {
            "model": name,
            "images": model.images,
            "height": model.height,
            "width": model.width,
            "pass": work,
            "dtype": dtype,
        }
        for part, (what, bound) in enumerate(zip(("output", "gradient"), BOUNDS, strict=True)):
            if part < len(exact):
                row[f"{what}_error"] = _relative_error(results[True][part], results[False][part])
                cost = _relative_error(results[False][part], exact[part])
                row[f"{what}_bound"] = bound if autocast is None else min(ROOM * cost, MOST)
        for key, is_patched in (("before", False), ("after", True)):
            row[key] = {
                "median_ms": round(statistics.median(samples[is_patched]), 4),
                "peak_mib": round(peaks[is_patched], 1),
                "samples_ms": samples[is_patched],
            }
        yield row
    msdeform.unpatch()


def measure() -> Iterator[dict[str, Any]]:
    """One row per model, pass and format, with every sample."""
    if not torch.cuda.is_available():
        raise SystemExit("models are timed on a GPU, and PyTorch finds none")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for name, model in MODELS.items():
        torch.manual_seed(1)
        network = model.build().eval().cuda()
        with torch.no_grad():
            # Fresh models have offsets that hardly depend on the query, and equal weights.
            for key, parameter in network.named_parameters():
                if "sampling_offsets" in key or "attention_weights" in key:
                    parameter.add_(torch.randn_like(parameter) * 0.02)
        pixels = torch.randn(model.images, 3, model.height, model.width, device="cuda")
        _normalise(network, pixels)
        for work in PASSES:
            for row in _measure_one(name, model, network, pixels, work):
                print(summary(row), flush=True)
                yield row
        del network, pixels
        torch.cuda.empty_cache()


def is_within_bounds(row: dict[str, Any]) -> bool:
    """Whether output and gradients are as close as they must be; NaN is not."""
    pairs = [(row["output_error"], row["output_bound"])]
    if "gradient_error" in row:
        pairs.append((row["gradient_error"], row["gradient_bound"]))
    return all(error <= bound for error, bound in pairs)


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    before, after = row["before"], row["after"]
    verdict = "" if is_within_bounds(row) else "  FAILED"
    return (
        f"{row['model']:16} {row['pass']:9} {row['dtype']:4}"
        f"  {before['median_ms']:8.2f} ms -> {after['median_ms']:8.2f} ms"
        f"  {before['peak_mib']:8.0f} MiB -> {after['peak_mib']:8.0f} MiB"
        f"  error {row['output_error']:.1e}, of gradients {row.get('gradient_error', math.nan):.1e}{verdict}"
    )


if __name__ == "__main__":
    sys.exit(0 if all([is_within_bounds(row) for row in measure()]) else 1)
