"""Calls of the operators in ONNX Runtime and OpenVINO: names, dtypes, models of one node, inputs, references.

Tests that import this are skipped where `onnx` or `onnxruntime` is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msdeform
import numpy as np
import pytest
import torch
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
SMALL: Levels = ((9, 12), (5, 6), (1, 3))


def one_node(
    name: tuple[str, str],
    inputs: Mapping[str, Array],
    static: Mapping[str, Sequence[Any]] | None = None,
    **attributes: Any,
) -> bytes:
    """A model whose inputs have these dtypes and ranks, and open sizes unless `static` gives the shape."""
    domain, operator = name
    shapes = {key: [f"{key}_{axis}" for axis in range(array.ndim)] for key, array in inputs.items()}
    shapes.update(static or {})
    given = [helper.make_tensor_value_info(key, TYPES[array.dtype], shapes[key]) for key, array in inputs.items()]
    output = helper.make_tensor_value_info("output", TYPES[inputs["value"].dtype], None)
    node = helper.make_node(operator, list(inputs), ["output"], domain=domain, **attributes)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "one_node", given, [output])
    written: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return written


def random_inputs(
    seed: int = 0,
    batch: int = 2,
    queries: int = 7,
    levels: Levels = SMALL,
    heads: int = 4,
    channels: int = 8,
    points: int = 3,
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


def offset_inputs(references: Sequence[int], dtype: Any = np.float32) -> dict[str, Array]:
    """The same with references of this shape, offsets and logits."""
    value, shapes, starts, locations, weights = random_inputs(dtype=dtype).values()
    random = np.random.default_rng(9)
    return {
        "value": value,
        "spatial_shapes": shapes,
        "level_start_index": starts,
        "reference_points": random.uniform(0.1, 0.9, references).astype(dtype),
        "sampling_offsets": random.normal(0, 1.3, locations.shape).astype(dtype),
        "attention_logits": (weights * 9).astype(dtype),
    }


def changed(**tensors: Any) -> dict[str, Array]:
    """A call with other tensors in place of some."""
    return {**random_inputs(), **{name: np.asarray(array) for name, array in tensors.items()}}


def expected(inputs: Mapping[str, Array], **keywords: Any) -> Array:
    """What it must give, by the reference in float64."""
    value, shapes, starts, locations, weights = inputs.values()
    wide = [array.astype(np.float64) for array in (value, locations, weights)]
    found: Array = msdeform.reference.ms_deform_attn(
        wide[0], shapes.tolist(), starts.tolist(), wide[1], wide[2], **keywords
    )
    return found


def expected_from_offsets(inputs: Mapping[str, Array], **attributes: Any) -> Array:
    """What a call with offsets must give, by PyTorch's operator in float64."""
    value, shapes, starts, *samples = inputs.values()
    keywords = {name: bool(number) for name, number in attributes.items() if name in ("anchors", "softmax", "nearest")}
    keywords.update({name: number for name, number in attributes.items() if name in ("offset_scale", "points")})
    wide = [torch.from_numpy(array.astype(np.float64)) for array in (value, *samples)]
    found: Array = msdeform.ms_deform_attn_from_offsets(
        wide[0], shapes.tolist(), *wide[1:], level_start_index=starts.tolist(), **keywords
    ).numpy()
    return found


def assert_within(bounds: Mapping[Any, float], found: Array, wanted: Array, dtype: Any) -> None:
    """Relative L2, by format."""
    assert found.dtype == dtype and found.shape == wanted.shape
    error = np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted.astype(np.float64))
    assert error <= bounds[np.dtype(dtype)]  # NaN is not.
