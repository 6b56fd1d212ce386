"""TensorRT: this package's operators as plugins that need no library.

`register()` lets TensorRT build engines from ONNX files with `MSDeformAttn` and `MSDeformAttnFromOffsets` of the domain
`msdeform`. TensorRT embeds our kernel in the engine as PTX, so a program that runs the engine needs neither this
package nor Python.

Importing this module imports `tensorrt`.
"""

# No `from __future__ import annotations` here: TensorRT reads the annotations of plugins as types.

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native

try:
    import tensorrt
    import tensorrt.plugin as trtp
except ImportError as error:
    raise ImportError(
        f"`msdeform.tensorrt` needs TensorRT with `tensorrt.plugin`; install it with `pip install tensorrt` ({error})"
    ) from error
if not hasattr(trtp, "aot_impl"):
    raise ImportError(
        f"`msdeform.tensorrt` needs `tensorrt.plugin.aot_impl`, which TensorRT {tensorrt.__version__} does not have; "
        "install a newer version with `pip install --upgrade tensorrt`"
    )

__all__ = ["prepare", "register"]

_NAMESPACE = "msdeform"
_CODES = {
    getattr(tensorrt.DataType, kind): _native.DTYPES.index(name)
    for kind, name in (("FLOAT", "f32"), ("HALF", "f16"), ("BF16", "bf16"))
}
_INTEGER_BYTES = {tensorrt.DataType.INT32: 4, tensorrt.DataType.INT64: 8}
# TensorRT passes each attribute of a plugin and has no defaults. No points for any level: the shapes say how many.
_PLAIN: dict[str, Any] = {"points": [0]}
_FROM_OFFSETS: dict[str, Any] = {**_PLAIN, "offset_scale": 0.5, "anchors": 0, "softmax": 1, "nearest": 0}
_OPERATORS = {"MSDeformAttn": _PLAIN, "MSDeformAttnFromOffsets": _FROM_OFFSETS}

# What an ahead-of-time plugin gives TensorRT: name, PTX, launch, and the integers that are passed after the inputs.
_Launch = tuple[str, str, trtp.KernelLaunchParams, trtp.SymExprs]


def register() -> None:
    """Registers the plugins with TensorRT, in this process. A second call does nothing.

    Their attributes are those of the ONNX operators. TensorRT knows no defaults, so `prepare` writes all of them into a
    model.
    """
    for name, functions in _FUNCTIONS.items():
        plugin = f"{_NAMESPACE}::{name}"
        if not hasattr(getattr(trtp.op, _NAMESPACE, None), name):
            describe, launch = functions
            trtp.register(plugin)(describe)
            trtp.aot_impl(plugin)(launch)


def prepare(model: Any) -> Any:
    """A copy of an `onnx.ModelProto` in which TensorRT's parser finds the plugins and all of their attributes."""
    from onnx import helper

    prepared = type(model)()
    prepared.CopyFrom(model)
    count = 0
    for node in prepared.graph.node:
        if node.domain != _NAMESPACE or node.op_type not in _OPERATORS:
            continue
        count += 1
        # Older parsers do not look for plugins in the domain of a node.
        wanted = {**_OPERATORS[node.op_type], "plugin_namespace": _NAMESPACE, "plugin_version": "1"}
        given = {attribute.name: attribute for attribute in node.attribute}
        if "points" in given and not given["points"].ints:
            node.attribute.remove(given.pop("points"))
        missing = {name: value for name, value in wanted.items() if name not in given}
        node.attribute.extend(helper.make_attribute(*named) for named in missing.items())
    if not count:
        raise ValueError(
            f"the model has no node of {' or '.join(_OPERATORS)} in the domain `{_NAMESPACE}`; "
            "`msdeform onnx rewrite MODEL --to msdeform` writes them"
        )
    return prepared


def _describe_plain(
    value: trtp.TensorDesc,
    spatial_shapes: trtp.TensorDesc,
    level_start_index: trtp.TensorDesc,
    sampling_locations: trtp.TensorDesc,
    attention_weights: trtp.TensorDesc,
    points: NDArray[np.int64],
) -> trtp.TensorDesc:
    integers = {"spatial_shapes": spatial_shapes, "level_start_index": level_start_index}
    tensors = {"value": value, "sampling_locations": sampling_locations, "attention_weights": attention_weights}
    return _output(integers, tensors)


def _launch_plain(
    value: trtp.TensorDesc,
    spatial_shapes: trtp.TensorDesc,
    level_start_index: trtp.TensorDesc,
    sampling_locations: trtp.TensorDesc,
    attention_weights: trtp.TensorDesc,
    points: NDArray[np.int64],
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> _Launch:
    tensors = {"value": value, "sampling_locations": sampling_locations, "attention_weights": attention_weights}
    return _launch(spatial_shapes, tensors, points, None)


def _describe_from_offsets(
    value: trtp.TensorDesc,
    spatial_shapes: trtp.TensorDesc,
    level_start_index: trtp.TensorDesc,
    reference_points: trtp.TensorDesc,
    sampling_offsets: trtp.TensorDesc,
    attention_logits: trtp.TensorDesc,
    points: NDArray[np.int64],
    offset_scale: float,
    anchors: int,
    softmax: int,
    nearest: int,
) -> trtp.TensorDesc:
    integers = {"spatial_shapes": spatial_shapes, "level_start_index": level_start_index}
    samples = {"sampling_offsets": sampling_offsets, "attention_logits": attention_logits}
    return _output(integers, {"value": value, "reference_points": reference_points, **samples})


def _launch_from_offsets(
    value: trtp.TensorDesc,
    spatial_shapes: trtp.TensorDesc,
    level_start_index: trtp.TensorDesc,
    reference_points: trtp.TensorDesc,
    sampling_offsets: trtp.TensorDesc,
    attention_logits: trtp.TensorDesc,
    points: NDArray[np.int64],
    offset_scale: float,
    anchors: int,
    softmax: int,
    nearest: int,
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> _Launch:
    samples = {"sampling_offsets": sampling_offsets, "attention_logits": attention_logits}
    tensors = {"value": value, "reference_points": reference_points, **samples}
    options = (float(offset_scale), bool(anchors), bool(softmax), bool(nearest))
    return _launch(spatial_shapes, tensors, points, options)


_FUNCTIONS = {
    "MSDeformAttn": (_describe_plain, _launch_plain),
    "MSDeformAttnFromOffsets": (_describe_from_offsets, _launch_from_offsets),
}
# Axes that a tensor may have.
_RANKS: dict[str, tuple[int, ...]] = {
    "value": (4,),
    "spatial_shapes": (2,),
    "level_start_index": (1,),
    "reference_points": (4,),
    **dict.fromkeys(("sampling_locations", "sampling_offsets"), (5, 6)),
    **dict.fromkeys(("attention_weights", "attention_logits"), (4, 5)),
}


def _output(integers: dict[str, trtp.TensorDesc], tensors: dict[str, trtp.TensorDesc]) -> trtp.TensorDesc:
    """Shape and dtype of the output, after a check of ranks and dtypes."""
    for kinds, of_kind in ((_INTEGER_BYTES, integers), (_CODES, tensors)):
        for name, tensor in of_kind.items():
            axes = len(tensor.shape_expr)
            if axes not in _RANKS[name]:
                wanted = " or ".join(map(str, _RANKS[name]))
                raise ValueError(f"`{name}` has {axes} axes, expected {wanted}")
            if tensor.dtype not in kinds:
                expected = ", ".join(kind.name for kind in kinds)
                raise TypeError(f"`{name}` is {tensor.dtype.name}, expected one of {expected}")
    first, second = (tensor.dtype for tensor in integers.values())
    if first != second:
        raise TypeError(f"`spatial_shapes` is {first.name} and `level_start_index` is {second.name}, expected one type")
    value, positions = tensors["value"], _positions(tensors)
    batch, _, heads, channels = value.shape_expr
    return trtp.from_shape_expr((batch, positions.shape_expr[1], heads * channels), dtype=value.dtype)


def _positions(tensors: dict[str, trtp.TensorDesc]) -> trtp.TensorDesc:
    """The locations or offsets."""
    return list(tensors.values())[-2]


def _launch(
    spatial_shapes: trtp.TensorDesc,
    tensors: dict[str, trtp.TensorDesc],
    points: NDArray[np.int64],
    options: tuple[Any, ...] | None,
) -> _Launch:
    """The kernel of a node. TensorRT calls it with sizes of -1 where a size may change from run to run."""
    levels = _fixed("spatial_shapes", list(spatial_shapes.shape), 0)
    shapes = _shapes({name: list(tensor.shape) for name, tensor in tensors.items()}, levels)
    signature = tuple((_CODES[tensors[name].dtype], tuple(shape)) for name, shape in shapes.items())
    given = tuple(map(int, points)) if np.any(points) else None
    integer_bytes = _INTEGER_BYTES[spatial_shapes.dtype]
    name, ptx, threads, block_rows, shared_bytes, numbers = _kernel(signature, options, (levels, given), integer_bytes)

    batch, pixels, heads, _ = tensors["value"].shape_expr
    queries = _positions(tensors).shape_expr[1]
    known = {"batch": batch, "pixels": pixels, "queries": queries}
    if "reference_points" in tensors:
        images, rows, *_ = tensors["reference_points"].shape_expr
        known |= {"reference_images": images, "reference_queries": rows}
    launch = trtp.KernelLaunchParams()
    # A launch without blocks is an error, also of a call without rows.
    launch.grid_x = trtp.max(trtp.cdiv(batch * queries * heads, block_rows), 1)
    launch.block_x = threads
    launch.shared_mem = shared_bytes
    return name, ptx, launch, trtp.SymIntExprs.from_tuple([trtp.SymInt32(known[number]) for number in numbers])


@lru_cache(maxsize=64)
def _kernel(
    signature: tuple[tuple[int, tuple[int, ...]], ...],
    options: tuple[Any, ...] | None,
    levels: tuple[int, tuple[int, ...] | None],
    integer_bytes: int,
) -> Any:
    """The compiled kernel, once for equal nodes."""
    return _native.tensorrt_kernel((signature, options), levels, integer_bytes)


def _shapes(shapes: dict[str, list[int]], levels: int) -> dict[str, list[int]]:
    """The shapes with a number for each size that may change: it does not count for what is compiled."""
    *_, positions, shares = shapes
    batch = _common([shapes[name][0] for name in ("value", positions, shares)])
    queries = _common([shapes[name][1] for name in (positions, shares)])
    sizes = {"value": (batch, levels), positions: (batch, queries), shares: (batch, queries)}
    for name, shape in shapes.items():
        given = zip(shape, sizes.get(name, (1, 1)), strict=False)
        shape[:2] = [usual if size < 0 else size for size, usual in given]
        for axis in range(len(shape)):
            _fixed(name, shape, axis)
    return shapes


def _common(sizes: Sequence[int]) -> int:
    """The first size that is known. Others that differ are an error of the library."""
    return next((size for size in sizes if size >= 0), 1)


def _fixed(name: str, shape: list[int], axis: int) -> int:
    if shape[axis] < 0:
        raise ValueError(
            f"axis {axis} of `{name}` may change from run to run; heads, channels, levels, points and references are "
            "compiled in, so export the model with fixed ones"
        )
    return shape[axis]
