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
        for what, call in (("PyTorch", from_locations), ("from offsets", from_offsets)):
            for dtype in BOUNDS:
                errors = cache(partial(call, torch, device, dtype))
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


def from_locations(torch: Any, device: str, dtype: str) -> dict[str, float]:
    """The operator on tensors, with its gradients."""

    def by(function: Any) -> Any:
        return lambda value, locations, weights: function(value, LEVELS, None, locations, weights)

    ours, expected = by(msdeform.ms_deform_attn), by(msdeform.reference.ms_deform_attn)
    return _compare(torch, device, dtype, ours, expected, _inputs())


def from_offsets(torch: Any, device: str, dtype: str) -> dict[str, float]:
    """The fused operator on tensors, with its gradients."""
    sizes = torch.tensor([[width, height] for height, width in LEVELS], dtype=torch.float64, device=device)

    def ours(value: Any, references: Any, offsets: Any, logits: Any) -> Any:
        return msdeform.ms_deform_attn_from_offsets(value, LEVELS, references, offsets, logits)

    def expected(value: Any, references: Any, offsets: Any, logits: Any) -> Any:
        locations = references[:, :, None, :, None] + offsets / sizes[:, None]
        weights = logits.flatten(3).softmax(-1).view(logits.shape)
        return msdeform.reference.ms_deform_attn(value, LEVELS, None, locations, weights)

    random = np.random.default_rng(23)
    value, _, logits = _inputs()
    shape = (BATCH, QUERIES, HEADS, len(LEVELS), POINTS, 2)
    # Whole numbers of pixels on either level, and parts of pixels that keep off the border between cells.
    references = random.integers(1, 8, (BATCH, QUERIES, len(LEVELS), 2)) / 8
    offsets = random.integers(-2, 3, shape) + random.choice([0.125, 0.25, 0.75, 0.875], shape)
    return _compare(torch, device, dtype, ours, expected, (value, references, offsets, logits))


def _compare(
    torch: Any, device: str, dtype: str, ours: Any, expected: Any, inputs: tuple[Any, ...]
) -> dict[str, float]:
    """The error of the output and the worst of the gradients, all in one dtype."""
    torch_dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    stored = [torch.tensor(array, device=device).to(torch_dtype) for array in inputs]
    narrow = [tensor.clone().requires_grad_() for tensor in stored]
    wide = [tensor.double().requires_grad_() for tensor in stored]
    found, wanted = ours(*narrow), expected(*wide)
    weight = torch.linspace(-1, 1, found.numel(), device=device).view(found.shape).to(torch_dtype)
    found.backward(weight)
    wanted.backward(weight.double())
    pairs = [(a.grad, b.grad) for a, b in zip(narrow, wide, strict=True)]
    errors = [rel_l2(a.double().cpu().numpy(), b.cpu().numpy()) for a, b in pairs]
    # Not by `max` alone, which ignores NaN.
    worst = max(errors) if all(error == error for error in errors) else float("nan")
    forward = rel_l2(found.detach().double().cpu().numpy(), wanted.detach().cpu().numpy())
    return {"forward": forward, "backward": worst}


def _inputs() -> tuple[Any, Any, Any]:
    """Value, locations and weights. Locations are numbers that every dtype holds, some outside of the levels, none on
    the border between cells, where the gradient jumps."""
    random = np.random.default_rng(22)
    pixels = sum(height * width for height, width in LEVELS)
    value = random.standard_normal((BATCH, pixels, HEADS, CHANNELS))
    shape = (BATCH, QUERIES, HEADS, len(LEVELS), POINTS)
    steps = 4 * random.integers(-3, 35, (*shape, 2)) + random.integers(1, 4, (*shape, 2))
    return value, steps / 128, random.random(shape) / (len(LEVELS) * POINTS)
