"""The operator as a function of tensors or arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import _array

__all__ = ["ms_deform_attn"]


def ms_deform_attn(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any = None,
    sampling_locations: Any = None,
    attention_weights: Any = None,
    im2col_step: int = 64,
    *,
    points: int | Sequence[int] | None = None,
    deterministic: bool = False,
) -> Any:
    """Multi-scale deformable attention.

    The output of query `q` in head `m` is the sum, over levels and points, of attention weight times the value
    at the sampling location, bilinearly interpolated; zero outside of the level (`align_corners=False`).

    Args:
        value: `[N, S, M, D]`; images, pixels of all levels, heads, channels.
        spatial_shapes: `(H, W)` of each of the L levels: a list or tuple, or an integer tensor `[L, 2]`. A list or a
            CPU tensor costs no synchronisation with the GPU. A tensor on the GPU is read once and remembered until it
            changes; tensors made under `inference_mode` are read every time.
        level_start_index: first pixel of each level, `[L]`. `None`: the levels follow each other. Beside a list of
            `spatial_shapes`, a tensor on the GPU is not read: the levels then follow each other.
        sampling_locations: `[N, Lq, M, L, P, 2]`, (x, y) in units of the level, normally in [0, 1]; or
            `[N, Lq, M, sum(points), 2]` with `points`.
        attention_weights: `[N, Lq, M, L, P]`, or `[N, Lq, M, sum(points)]` with `points`.
        im2col_step: accepted for the sake of existing callers and ignored: any batch will do.
        points: number of points of each level, where they differ.
        deterministic: gradients with the same bits in every run. Also under `torch.use_deterministic_algorithms(True)`.
            The processor's always are.

    Returns:
        `[N, Lq, M * D]`, in the format of `value`.

    float32, float16, bfloat16, and float64 by a slow, exact reference. Arithmetic is float32 or better in any case.
    Locations and weights may be float32 beside half precision values, as autocast produces them.

    NumPy arrays give a NumPy array. Other objects that speak DLPack are taken as NumPy arrays if they are in host
    memory and as PyTorch tensors if not.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        if sampling_locations is None or attention_weights is None:
            raise TypeError("`sampling_locations` and `attention_weights` are required")
        as_tensors = _array.tensors_of_a_gpu(value, sampling_locations, attention_weights)
        if as_tensors is None:
            return _array.forward(
                value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points
            )
        value, sampling_locations, attention_weights = as_tensors
    attend = _attend if _attend is not None else _import_attend()
    return attend(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points, deterministic
    )


# `_tensor.attend`, from the first tensor on: importing it imports PyTorch.
_attend: Callable[..., Any] | None = None


def _import_attend() -> Callable[..., Any]:
    global _attend
    from ._tensor import attend

    _attend = attend
    return attend
