"""Calls with NumPy arrays and other objects that export DLPack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._levels import numbers_of

# By name: NumPy has no bfloat16 of its own, but other packages register one.
_CODES = {
    name: _native.DTYPES.index(code)
    for name, code in (("float32", "f32"), ("float16", "f16"), ("bfloat16", "bf16"), ("float64", "f64"))
}

_DLPACK_CPU = 1
_NAMES = ("value", "sampling_locations", "attention_weights")


def _on_cpu(name: str, given: Any) -> bool:
    if isinstance(given, np.ndarray):
        return True
    try:
        return int(given.__dlpack_device__()[0]) == _DLPACK_CPU
    except (BufferError, RuntimeError, ValueError) as error:
        raise _no_array(name, error) from error


def _no_array(name: str, error: Exception) -> TypeError:
    return TypeError(f"`{name}` cannot be read as an array: {error}")


def tensors_of_a_gpu(*given: Any) -> tuple[Any, ...] | None:
    """PyTorch tensors of the same memory if any of these is not in host memory; `None` if all are."""
    for name, item in zip(_NAMES, given, strict=True):
        if not isinstance(item, np.ndarray) and not hasattr(item, "__dlpack_device__"):
            raise TypeError(
                f"`{name}` is a {type(item).__module__}.{type(item).__name__}; expected a torch.Tensor, a "
                "numpy.ndarray or an object with `__dlpack__`"
            )
    on_cpu = [_on_cpu(name, item) for name, item in zip(_NAMES, given, strict=True)]
    if all(on_cpu):
        return None
    try:
        import torch
    except ImportError as error:
        raise RuntimeError("arrays in GPU memory need PyTorch, which is not installed; `pip install torch`") from error
    return tuple(torch.from_dlpack(item) for item in given)


def _array(name: str, given: Any) -> NDArray[Any]:
    try:
        array = given if isinstance(given, np.ndarray) else np.from_dlpack(given)
    except (BufferError, RuntimeError, ValueError) as error:
        raise _no_array(name, error) from error
    if array.dtype.name not in _CODES:
        raise TypeError(f"`{name}` is {array.dtype.name}; expected float32, float16, bfloat16 or float64")
    return array


def _threads(wanted: int | None = None) -> int:
    """The number of threads of a call: the caller's, else OpenMP's, else the cores that this process may run on."""
    if wanted is not None:
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
            raise ValueError(f"`threads` must be a number of threads, 1 or more, found {wanted!r}")
        return wanted
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def forward(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    sampling_locations: Any,
    attention_weights: Any,
    points: int | Sequence[int] | None,
    threads: int | None,
) -> NDArray[Any]:
    """The operator on arrays in host memory."""
    count = _threads(threads)
    value, locations, weights = map(_array, _NAMES, (value, sampling_locations, attention_weights))
    if locations.dtype != weights.dtype or locations.dtype not in (value.dtype, np.float32):
        wide = np.float64 if np.float64 in (locations.dtype, weights.dtype) else np.float32
        locations, weights = locations.astype(wide), weights.astype(wide)
    if value.ndim != 4:
        raise ValueError(f"`value` has shape {list(value.shape)}, expected [batch, pixels, heads, channels]")
    levels = numbers_of(value.shape, spatial_shapes, level_start_index, locations.shape, points)
    # Callers may pass any strides, negative ones included; nothing reads those of contiguous arrays.
    arrays = [np.ascontiguousarray(each) for each in (value, locations, weights)]
    batch, _, heads, channels = value.shape
    output = np.empty((batch, locations.shape[1], heads * channels), dtype=value.dtype)
    operands = [(each.ctypes.data, _CODES[each.dtype.name], each.shape, ()) for each in arrays]
    _native.forward(levels, (count, None), (operands, None), output.ctypes.data)
    return output
