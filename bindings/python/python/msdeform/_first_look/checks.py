"""Small calls in every dtype against plain float64 arithmetic on the same stored numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

import msdeform

# The accuracy contract: relative L2 error of the output and of each gradient, by the dtype of the values.
BOUNDS = {"f32": 1e-5, "f16": 5e-4, "bf16": 4e-3}
LEVELS = [(16, 8), (8, 16)]
BATCH, QUERIES, HEADS, CHANNELS, POINTS = 2, 37, 4, 32, 4

# One check: its device, its name, its dtype, and the function that returns the error.
Check = tuple[str, str, str, Callable[[], float]]


def rel_l2(found: Any, expected: Any) -> float:
    """The relative L2 error. A NaN anywhere gives NaN, which exceeds every bound."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def all_checks(torch: Any, gpus: list[str], torch_gpus: list[str]) -> Iterator[Check]:
    """All checks that can run on this machine, the cheap ones first."""
    for dtype in ("f32", "f16"):
        yield "cpu", "NumPy, forward", dtype, partial(numpy_forward, dtype)
    devices = ["cpu", *torch_gpus] if torch is not None else []
    # Devices that PyTorch cannot use are checked without Python, with the package's own inputs and reference.
    for device in (device for device in ["cpu", *gpus] if device not in devices):
        for direction in ("forward", "backward"):
            for dtype in BOUNDS:
                yield device, direction, dtype, partial(without_torch, device, direction, dtype)
    for device in devices:
        for what, name in (("PyTorch", "ms_deform_attn"), ("from offsets", "ms_deform_attn_from_offsets")):
            for dtype in BOUNDS:
                errors = cache(partial(by_torch, torch, device, dtype, name))
                for part in ("forward", "backward"):
                    yield device, f"{what}, {part}", dtype, partial(_error_of, errors, part)


def _error_of(errors: Callable[[], dict[str, float]], part: str) -> float:
    return errors()[part]


def numpy_forward(dtype: str) -> float:
    """The operator on NumPy arrays."""
    value, locations, weights = (array.astype(f"f{int(dtype[1:]) // 8}") for array in _inputs())
    found = msdeform.ms_deform_attn(value, LEVELS, None, locations, weights)
    wide = [array.astype(np.float64) for array in (value, locations, weights)]
    return rel_l2(found, msdeform.reference.ms_deform_attn(wide[0], LEVELS, None, wide[1], wide[2]))


def without_torch(device: str, direction: str, dtype: str) -> float:
    """A built-in workload, compared with the native reference."""
    measured = msdeform.bench("edge_channels_64", device=device, dtype=dtype, direction=direction, seconds=0.0)
    return float(measured["rel_l2"])


def by_torch(torch: Any, device: str, dtype: str, name: str) -> dict[str, float]:
    """The function of a name on tensors, all of one dtype: the errors of the output and of the worst gradient."""
    torch_dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    inputs = _fused_inputs() if name == "ms_deform_attn_from_offsets" else dict(zip(_NAMES, _inputs(), strict=True))
    stored = {each: torch.tensor(array, device=device).to(torch_dtype) for each, array in inputs.items()}
    narrow = {each: tensor.clone().requires_grad_() for each, tensor in stored.items()}
    wide = {each: tensor.double().requires_grad_() for each, tensor in stored.items()}
    found, wanted = (
        getattr(module, name)(spatial_shapes=LEVELS, level_start_index=None, **tensors)
        for module, tensors in ((msdeform, narrow), (msdeform.reference, wide))
    )
    weight = torch.linspace(-1, 1, found.numel(), device=device).view(found.shape).to(torch_dtype)
    found.backward(weight)
    wanted.backward(weight.double())
    errors = [rel_l2(narrow[each].grad.double().cpu().numpy(), wide[each].grad.cpu().numpy()) for each in inputs]
    # Not by `max` alone, which ignores NaN.
    worst = max(errors) if all(error == error for error in errors) else float("nan")
    forward = rel_l2(found.detach().double().cpu().numpy(), wanted.detach().cpu().numpy())
    return {"forward": forward, "backward": worst}


_NAMES = ("value", "sampling_locations", "attention_weights")


def _fused_inputs() -> dict[str, Any]:
    random = np.random.default_rng(23)
    value, _, logits = _inputs()
    # Whole numbers of pixels on either level, and parts of pixels that keep off the border between cells.
    references = random.integers(1, 8, (BATCH, QUERIES, len(LEVELS), 2)) / 8
    shape = (*logits.shape, 2)
    offsets = random.integers(-2, 3, shape) + random.choice([0.125, 0.25, 0.75, 0.875], shape)
    return {"value": value, "reference_points": references, "sampling_offsets": offsets, "attention_logits": logits}


def _inputs() -> tuple[Any, Any, Any]:
    """Value, locations and weights. Locations are numbers that every dtype holds, some outside of the levels, none on
    the border between cells, where the gradient jumps."""
    random = np.random.default_rng(22)
    pixels = sum(height * width for height, width in LEVELS)
    value = random.standard_normal((BATCH, pixels, HEADS, CHANNELS))
    shape = (BATCH, QUERIES, HEADS, len(LEVELS), POINTS)
    steps = 4 * random.integers(-3, 35, (*shape, 2)) + random.integers(1, 4, (*shape, 2))
    return value, steps / 128, random.random(shape) / (len(LEVELS) * POINTS)
