"""The operator as a function of tensors or arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from . import _array

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ._typing import Exchangeable, Points, Scalar, Shapes, Starts

__all__ = ["ms_deform_attn"]


# The default of required arguments that follow an optional one.
_REQUIRED: Any = type("_Required", (), {"__repr__": lambda _: "<required>"})()


@overload
def ms_deform_attn(
    value: NDArray[Scalar],
    spatial_shapes: Shapes,
    level_start_index: Starts | None,
    sampling_locations: NDArray[Any],
    attention_weights: NDArray[Any],
    im2col_step: int = 64,
    *,
    points: Points | None = None,
    deterministic: bool | None = None,
    threads: int | None = None,
) -> NDArray[Scalar]: ...
@overload
def ms_deform_attn(
    value: NDArray[Scalar],
    spatial_shapes: Shapes,
    *,
    sampling_locations: NDArray[Any],
    attention_weights: NDArray[Any],
    level_start_index: Starts | None = None,
    im2col_step: int = 64,
    points: Points | None = None,
    deterministic: bool | None = None,
    threads: int | None = None,
) -> NDArray[Scalar]: ...
@overload
def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Shapes,
    level_start_index: Starts | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int = 64,
    *,
    points: Points | None = None,
    deterministic: bool | None = None,
) -> Tensor: ...
@overload
def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Shapes,
    *,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    level_start_index: Starts | None = None,
    im2col_step: int = 64,
    points: Points | None = None,
    deterministic: bool | None = None,
) -> Tensor: ...
@overload
def ms_deform_attn(  # type: ignore[overload-cannot-match]  # Where PyTorch is not installed, a tensor is anything.
    value: Exchangeable,
    spatial_shapes: Shapes,
    level_start_index: Starts | None,
    sampling_locations: Exchangeable,
    attention_weights: Exchangeable,
    im2col_step: int = 64,
    *,
    points: Points | None = None,
    deterministic: bool | None = None,
) -> Any: ...
def ms_deform_attn(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any = None,
    sampling_locations: Any = _REQUIRED,
    attention_weights: Any = _REQUIRED,
    im2col_step: int = 64,
    *,
    points: Points | None = None,
    deterministic: bool | None = None,
    threads: int | None = None,
) -> Any:
    """Multi-scale deformable attention.

    The output of query `q` in head `m` is a sum over levels and points: attention weight times the bilinearly
    interpolated value at the sampling location. Values outside of the level are zero (`align_corners=False`).

    Args:
        value: `[N, S, M, D]`; images, pixels of all levels, heads, channels.
        spatial_shapes: `(H, W)` of each of the L levels: a list or tuple, or an integer tensor `[L, 2]`. A list or a
            CPU tensor never waits for the GPU. A tensor on the GPU is read once, and again after PyTorch reports a
            change. PyTorch does not report writes through `.data`, another library or the replay of a graph. Tensors
            made under `inference_mode`, and lists of tensors on the GPU, are read every time.
        level_start_index: first pixel of each level, `[L]`. `None`: the levels follow each other and cover all
            pixels. If `spatial_shapes` is a list, a tensor on the GPU is not read: the levels then follow each other.
        sampling_locations: `[N, Lq, M, L, P, 2]` or `[N, Lq, M, L * P, 2]`, (x, y) in units of the level, normally in
            [0, 1]; `[N, Lq, M, sum(points), 2]` if levels have different numbers of points.
        attention_weights: `[N, Lq, M, L, P]`, `[N, Lq, M, L * P]` or `[N, Lq, M, sum(points)]`.
        im2col_step: ignored. Existing callers pass it.
        points: a list with the number of points of each level, or one number. Needed only if the numbers differ.
        deterministic: `True` makes gradients bitwise reproducible. `None` follows
            `torch.use_deterministic_algorithms`. If that setting is on, `False` does not turn it off. CPU gradients are
            always reproducible.
        threads: number of threads of a call on arrays. `None`: `OMP_NUM_THREADS`, else the cores that the process may
            run on. Calls on tensors follow `torch.set_num_threads` instead.

    Returns:
        `[N, Lq, M * D]`, in the dtype of `value`.

    Dtypes are float32, float16 and bfloat16, and float64 by a slow, exact reference. Arithmetic is float32 or better
    for every dtype. With half precision values, locations and weights may be float32, as autocast produces them.

    NumPy arrays give a NumPy array. Other objects with DLPack are read as NumPy arrays if they are in host memory, and
    as PyTorch tensors otherwise.
    """
    if attention_weights is _REQUIRED or sampling_locations is _REQUIRED:
        name = "sampling_locations" if sampling_locations is _REQUIRED else "attention_weights"
        raise TypeError(f"ms_deform_attn() missing a required argument: '{name}'")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        as_tensors = _array.tensors_of_a_gpu(value, sampling_locations, attention_weights)
        if as_tensors is None:
            return _array.forward(
                value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points, threads
            )
        value, sampling_locations, attention_weights = as_tensors
        torch = sys.modules["torch"]
    if threads is not None:
        raise TypeError("`threads` is for calls on arrays; for tensors call `torch.set_num_threads(...)`")
    if torch.compiler.is_compiling():
        # Not through `_attend`, because the first call sets that variable, and the compiler would compile again.
        from ._tensor import attend
    else:
        attend = _attend if _attend is not None else _import_attend()
    return attend(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points, bool(deterministic)
    )


# `_tensor.attend`, set by the first call with a tensor, because its import needs PyTorch.
_attend: Callable[..., Any] | None = None


def _import_attend() -> Callable[..., Any]:
    global _attend
    from ._tensor import attend

    _attend = attend
    return attend
