"""Calls of the custom operators of ONNX Runtime, on the CPU and on a GPU: names, dtypes, inputs, references.

Tests that import this are skipped where `onnx` or `onnxruntime` is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msdeform
import numpy as np
import pytest
from numpy.typing import NDArray

TensorProto = pytest.importorskip("onnx").TensorProto
helper = pytest.importorskip("onnx.helper")
onnxruntime = pytest.importorskip("onnxruntime")

Array = NDArray[Any]
Levels = tuple[tuple[int, int], ...]
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
}
# Names that take locations and weights, and the type of their integers.
GIVEN = {
    ("msdeform", "MSDeformAttn"): np.int64,
    ("mmdeploy", "MMCVMultiScaleDeformableAttention"): np.int64,
    ("trt.plugins", "MultiscaleDeformableAttnPlugin_TRT"): np.int32,
}
OFFSETS = ("msdeform", "MSDeformAttnFromOffsets")


def random_inputs(
    seed: int,
    batch: int,
    queries: int,
    levels: Levels,
    heads: int,
    channels: int,
    points: int,
    dtype: Any = np.float32,
    sampling: Any = None,
    integers: Any = np.int64,
    outside: float = 0.2,
    heaviest: float = 0.3,
) -> dict[str, Array]:
    """A call with locations, some of them `outside` by so much of a level, and weights up to `heaviest`."""
    random = np.random.default_rng(seed)
    sampling = sampling or dtype
    sizes = [height * width for height, width in levels]
    shape = (batch, queries, heads, len(levels), points)
    return {
        "value": random.standard_normal((batch, sum(sizes), heads, channels)).astype(dtype),
        "spatial_shapes": np.array(levels, integers).reshape(-1, 2),
        "level_start_index": (np.cumsum([0, *sizes])[:-1]).astype(integers),
        "sampling_locations": random.uniform(-outside, 1 + outside, (*shape, 2)).astype(sampling),
        "attention_weights": random.uniform(0, heaviest, shape).astype(sampling),
    }


def expected(inputs: Mapping[str, Array], **keywords: Any) -> Array:
    """What it must give, by the reference in float64."""
    value, shapes, starts, locations, weights = inputs.values()
    wide = [array.astype(np.float64) for array in (value, locations, weights)]
    found: Array = msdeform.reference.ms_deform_attn(
        wide[0], shapes.tolist(), starts.tolist(), wide[1], wide[2], **keywords
    )
    return found


def assert_within(bounds: Mapping[Any, float], found: Array, wanted: Array, dtype: Any) -> None:
    """Relative L2, by format."""
    assert found.dtype == dtype and found.shape == wanted.shape
    error = np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted.astype(np.float64))
    assert error <= bounds[np.dtype(dtype)]  # NaN is not.
