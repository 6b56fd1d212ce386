"""What the patch changes in whole models: time and peak memory before and after, and how far the results move.

    python benches/models.py

Deformable-DETR and RT-DETR with ResNet-50 and Mask2Former with Swin-T at usual sizes of images, with random weights so
that nothing is downloaded. "Before" is what transformers does without a compiled kernel: `grid_sample` per level.
Both ways take turns, round after round, so that a machine that gets slower slows down both.

    python benches/models.py --warm-up Deformable-DETR f16

takes one training step with the patch and says nothing: the kernels it needs are compiled and kept on disk.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msdeform
import torch
from torch import Tensor

ROUNDS, STEPS = 2, 3
DTYPES = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}

# Relative L2 of output and gradients, patched against unpatched in the same format. In float32 they differ by rounding
# alone, which Mask2Former's masks, decided by a threshold, magnify in the gradients. Under autocast both round in every
# layer, each in its own places: they may differ by twice what autocast itself changes in the unpatched model, and never
# by more than a tenth.
BOUNDS, ROOM, MOST = (1e-3, 3e-2), 2.0, 0.1

# What a loss is multiplied by: the first under which the unpatched model's gradients are finite, as
# torch.amp.GradScaler looks for it. float16 ends at 65504.
LOSS_SCALES = (1.0, 2.0**-8, 2.0**-16)


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


def _infer(network: Any, model: Model, pixels: Tensor, _: float) -> Tensor:
    with torch.no_grad():
        output: Tensor = getattr(network(pixel_values=pixels), model.output)
    return output


def _train(network: Any, model: Model, pixels: Tensor, loss_scale: float) -> Tensor:
    """Forward and backward; the optimizer would be the same on both sides."""
    network.zero_grad()
    output: Tensor = getattr(network(pixel_values=pixels), model.output)
    # Not the square: outputs are normalised, their sum of squares hardly depends on anything.
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
    (output * (direction * loss_scale)).sum().backward()
    return output.detach()


PASSES: dict[str, Callable[[Any, Model, Tensor, float], Tensor]] = {"inference": _infer, "training": _train}


def _results(network: Any, output: Tensor, work: str, loss_scale: float) -> tuple[Tensor, ...]:
    """The output and, after training, all gradients in one row; in host memory, not to count as the model's."""
    if work == "inference":
        return (output.cpu(),)
    gradients = [parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]
    return output.cpu(), torch.cat(gradients).cpu() / loss_scale


def _relative_error(found: Tensor, expected: Tensor) -> float | None:
    """Relative L2; `None` where it is not a number, which no bound admits."""
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    return error if math.isfinite(error) else None


def _are_finite(tensors: tuple[Tensor, ...]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


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

        def step(loss_scale: float, autocast: torch.dtype | None = autocast) -> Tensor:
            with nullcontext() if autocast is None else torch.autocast("cuda", dtype=autocast):
                return PASSES[work](network, model, pixels, loss_scale)

        scale = LOSS_SCALES[0]
        msdeform.unpatch()
        for scale in LOSS_SCALES:
            results[False] = _results(network, step(scale), work, scale)
            if _are_finite(results[False]):
                break
        msdeform.patch("transformers")
        results[True] = _results(network, step(scale), work, scale)
        for is_patched in (False, True) * ROUNDS:
            _set_patch(is_patched)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(STEPS):
                start = time.perf_counter()
                step(scale)
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
            "loss_scale": scale,
            # False: autocast overflows in the model as it is; then there is nothing to compare with.
            "is_comparable": _are_finite(results[False]),
        }
        for part, (what, bound) in enumerate(zip(("output", "gradient"), BOUNDS, strict=True)):
            if part < len(exact):
                row[f"{what}_error"] = _relative_error(results[True][part], results[False][part])
                cost = _relative_error(results[False][part], exact[part])
                row[f"{what}_bound"] = bound if autocast is None else min(ROOM * (cost or 0.0), MOST)
        for key, is_patched in (("before", False), ("after", True)):
            row[key] = {
                "median_ms": round(statistics.median(samples[is_patched]), 4),
                "peak_mib": round(peaks[is_patched], 1),
                "samples_ms": samples[is_patched],
            }
        yield row
    msdeform.unpatch()


def _prepare(model: Model) -> tuple[Any, Tensor]:
    """The model on the GPU, and its images."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    network = model.build().eval().cuda()
    with torch.no_grad():
        # Fresh models have offsets that hardly depend on the query, and equal weights.
        for key, parameter in network.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    pixels = torch.randn(model.images, 3, model.height, model.width, device="cuda")
    _normalise(network, pixels)
    return network, pixels


def warm_up(name: str, dtype: str) -> None:
    """One training step with the patch."""
    msdeform.patch("transformers")
    network, pixels = _prepare(MODELS[name])
    autocast = DTYPES[dtype]
    with nullcontext() if autocast is None else torch.autocast("cuda", dtype=autocast):
        _train(network, MODELS[name], pixels, 1.0)
    torch.cuda.synchronize()


def measure(done: Collection[tuple[str, str]] = ()) -> Iterator[dict[str, Any]]:
    """One row per model, pass and format, with every sample, without the models and passes that are `done`."""
    if not torch.cuda.is_available():
        raise SystemExit("models are timed on a GPU, and PyTorch finds none")
    for name, model in MODELS.items():
        missing = [work for work in PASSES if (name, work) not in done]
        if not missing:
            continue
        network, pixels = _prepare(model)
        for work in missing:
            for row in _measure_one(name, model, network, pixels, work):
                print(summary(row), flush=True)
                yield row
        del network, pixels
        torch.cuda.empty_cache()


def is_within_bounds(row: dict[str, Any]) -> bool:
    """Whether output and gradients are as close as they must be, if they can be compared at all."""
    pairs = [(row["output_error"], row["output_bound"])]
    if "gradient_error" in row:
        pairs.append((row["gradient_error"], row["gradient_bound"]))
    return not row["is_comparable"] or all(error is not None and error <= bound for error, bound in pairs)


def summary(row: dict[str, Any]) -> str:
    """One line for people."""
    before, after = row["before"], row["after"]
    verdict = "" if is_within_bounds(row) else "  FAILED"
    if not row["is_comparable"]:
        verdict = "  not comparable: the unpatched model is not finite"
    errors = [
        f"{error:.1e}" if error is not None else "-" for error in (row["output_error"], row.get("gradient_error"))
    ]
    return (
        f"{row['model']:16} {row['pass']:9} {row['dtype']:4}"
        f"  {before['median_ms']:8.2f} ms -> {after['median_ms']:8.2f} ms"
        f"  {before['peak_mib']:8.0f} MiB -> {after['peak_mib']:8.0f} MiB"
        f"  error {errors[0]}, of gradients {errors[1]}{verdict}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-up", nargs=2, metavar=("MODEL", "FORMAT"), help="compile what it needs, time nothing")
    arguments = parser.parse_args()
    if arguments.warm_up:
        sys.exit(warm_up(*arguments.warm_up))
    sys.exit(0 if all([is_within_bounds(row) for row in measure()]) else 1)
