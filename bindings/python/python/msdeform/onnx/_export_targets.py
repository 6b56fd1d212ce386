"""The nodes of an exported call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._operators import Call, Form
from . import _export_gridsample
from ._export_graph import BFLOAT16, DOUBLE, FLOAT, INT32, INT64, Graph, Value, cast
from ._export_levels import Levels

MMDEPLOY = "mmdeploy::MMCVMultiScaleDeformableAttention"
TENSORRT = "trt.plugins::MultiscaleDeformableAttnPlugin_TRT"


def translate(graph: Graph, target: str, form: Form, call: Call) -> Value:
    """The nodes of a call."""
    (value, *others), options = call.tensors, call.options
    levels = Levels.of_list(list(call.levels[0])) if form.has_numbers else _read(graph, others[-2], *call.levels)
    if target == "msdeform":
        return _own(graph, form, value, others, levels, options)
    if options:
        # A model that is traced for this target has PyTorch's operations and the plain operator instead.
        raise ValueError(
            f'target "{target}" has no node for `{form.operator.name}`; trace the model inside of '
            f'`msdeform.onnx.exporting("{target}")`'
        )
    locations, weights = others
    return _plain(graph, target, value, locations, weights, levels)


def _read(
    graph: Graph, locations: Value, spatial_shapes: Value, level_start_index: Value | None, points: Sequence[int] | None
) -> Levels:
    """Levels that are tensors."""
    count = graph.sizes(spatial_shapes)[0]
    axes = graph.sizes(locations)
    if points is None:
        samples = axes[4] if len(axes) == 6 else None if axes[3] is None or count is None else axes[3] // count
        if count is None or samples is None:
            raise ValueError(
                f"`spatial_shapes` has shape {graph.sizes(spatial_shapes)} and `sampling_locations` {axes}: the "
                "numbers of levels and of points must be known when the model is exported; export it with fixed ones"
            )
        points = [samples] * count
    shapes = graph.numbers(spatial_shapes)
    starts = None if level_start_index is None else graph.numbers(level_start_index)
    numbers = None
    if shapes is not None and (level_start_index is None or starts is not None):
        pairs = list(zip(shapes[::2], shapes[1::2], strict=True))
        if starts is None:
            ends = np.cumsum([height * width for height, width in pairs])
            starts = [0, *(int(end) for end in ends[:-1])]
        numbers = [(*pair, start) for pair, start in zip(pairs, starts, strict=True)]
    return Levels(list(points), numbers, spatial_shapes, level_start_index)


def _own(
    graph: Graph, form: Form, value: Value, others: list[Value], levels: Levels, options: tuple[Any, ...]
) -> Value:
    """The node of this package, which has the inputs and the options of the operator."""
    kind = _node_format(graph, value)
    attributes: dict[str, Any] = {} if levels.have_equal_points else {"points": levels.points}
    for option, given in zip(form.operator.options, options, strict=True):
        sort, name = option.split()
        attributes[name] = float(given) if sort == "float" else int(given)
    tensors = cast(graph, value, kind), *levels.tensors(graph, INT64), *(_beside(graph, each, kind) for each in others)
    output = graph.node(f"msdeform::{form.operator.node}", *tensors, **attributes)
    return output if kind == graph.format(value) else graph.node("Cast", output, to=graph.format(value))


def _plain(graph: Graph, target: str, value: Value, locations: Value, weights: Value, levels: Levels) -> Value:
    """The nodes of another package."""
    kind = _node_format(graph, value)
    if target == "gridsample":
        return _export_gridsample.attend(graph, value, locations, weights, levels)
    if not levels.have_equal_points:
        raise ValueError(
            f"levels have different numbers of points, {levels.points}, but the node of the target "
            f'"{target}" has one for all; use the target "msdeform" or "gridsample"'
        )
    # All of one dtype, that of the coordinates: they are not rounded to that of the values.
    if graph.format(locations) != kind or graph.format(weights) != kind:
        kind = FLOAT
    locations, weights = cast(graph, locations, kind), cast(graph, weights, kind)
    axes = np.array([0, 0, 0, len(levels.points), -1])
    locations = graph.node("Reshape", locations, graph.constant(np.append(axes, 2)))
    weights = graph.node("Reshape", weights, graph.constant(axes))
    name, integers = (MMDEPLOY, INT64) if target == "mmdeploy" else (TENSORRT, INT32)
    shapes, starts = levels.tensors(graph, integers)
    step = {"im2col_step": 64} if target == "mmdeploy" else {}
    output = graph.node(name, cast(graph, value, kind), shapes, starts, locations, weights, **step)
    if target == "tensorrt":
        # Its heads and channels are axes of their own.
        output = graph.node("Reshape", output, graph.constant(np.array([0, 0, -1])))
    return output if kind == graph.format(value) else graph.node("Cast", output, to=graph.format(value))


def _node_format(graph: Graph, value: Value) -> int:
    """The dtype of a node's values: their own, or float32 if nodes do not support it."""
    found = graph.format(value)
    if found == DOUBLE:
        raise ValueError("`value` is float64, and float64 is not exported; export `model.float()`")
    return FLOAT if found == BFLOAT16 else found


def _beside(graph: Graph, tensor: Value, kind: int) -> Value:
    """The tensor in a dtype that the node accepts for values of the dtype `kind`."""
    return tensor if graph.format(tensor) in (FLOAT, kind) else graph.node("Cast", tensor, to=FLOAT)
