"""Which nodes a call becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _export_gridsample
from ._export_graph import BFLOAT16, DOUBLE, FLOAT, INT32, INT64, Graph, Value, cast
from ._export_levels import Levels
from ._export_parts import Rule, locations_of, weights_of

__all__ = ["Rule", "attend", "attend_from_offsets", "attend_reading"]

MMDEPLOY = "mmdeploy::MMCVMultiScaleDeformableAttention"
TENSORRT = "trt.plugins::MultiscaleDeformableAttnPlugin_TRT"


def attend(graph: Graph, target: str, value: Value, locations: Value, weights: Value, levels: list[Any]) -> Value:
    """The operator with its levels as a list, four numbers each."""
    return _plain(graph, target, value, locations, weights, Levels.of_list(levels))


def attend_reading(
    graph: Graph,
    target: str,
    value: Value,
    locations: Value,
    weights: Value,
    spatial_shapes: Value,
    level_start_index: Value | None,
    points: Sequence[int] | None,
) -> Value:
    """The operator with its levels as tensors."""
    count = graph.sizes(spatial_shapes)[0]
    axes = graph.sizes(locations)
    if points is None:
        samples = axes[4] if len(axes) == 6 else None if axes[3] is None or count is None else axes[3] // count
        if count is None or samples is None:
            raise ValueError(
                "the numbers of levels and of points are not known when the model is exported: `spatial_shapes` has "
                f"shape {graph.sizes(spatial_shapes)} and `sampling_locations` {axes}"
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
    levels = Levels(list(points), numbers, spatial_shapes, level_start_index)
    return _plain(graph, target, value, locations, weights, levels)


def attend_from_offsets(
    graph: Graph,
    target: str,
    value: Value,
    references: Value,
    offsets: Value,
    logits: Value,
    levels: list[Any],
    rule: Rule,
) -> Value:
    """The operator with samples that follow from offsets and logits."""
    found = Levels.of_list(levels)
    if target == "msdeform":
        kind = _node_format(graph, value)
        attributes: dict[str, Any] = {} if found.have_equal_points else {"points": found.points}
        output = graph.node(
            "msdeform::MSDeformAttnFromOffsets",
            cast(graph, value, kind),
            *found.tensors(graph, INT64),
            *(_beside(graph, tensor, kind) for tensor in (references, offsets, logits)),
            **attributes,
            offset_scale=rule.offset_scale,
            anchors=int(rule.anchors),
            softmax=int(rule.softmax),
            nearest=int(rule.nearest),
        )
        return output if kind == graph.format(value) else graph.node("Cast", output, to=graph.format(value))
    _refuse_points(target, found)
    locations = locations_of(graph, references, offsets, found, rule)
    weights = weights_of(graph, logits, rule)
    return _plain(graph, target, value, locations, weights, found, are_computed=True)


def _plain(
    graph: Graph,
    target: str,
    value: Value,
    locations: Value,
    weights: Value,
    levels: Levels,
    are_computed: bool = False,
) -> Value:
    """The node, or the nodes, of a target. Locations and weights that were computed here are float32, by samples."""
    kind = _node_format(graph, value)
    if target == "gridsample":
        return _export_gridsample.attend(graph, value, locations, weights, levels, are_computed)
    if target == "msdeform":
        attributes: dict[str, Any] = {} if levels.have_equal_points else {"points": levels.points}
        given = [tensor if are_computed else _beside(graph, tensor, kind) for tensor in (locations, weights)]
        shapes, starts = levels.tensors(graph, INT64)
        output = graph.node("msdeform::MSDeformAttn", cast(graph, value, kind), shapes, starts, *given, **attributes)
    else:
        _refuse_points(target, levels)
        # All of one format, and that of the coordinates: they are not rounded for the sake of the values.
        if are_computed or graph.format(locations) != kind or graph.format(weights) != kind:
            kind = FLOAT
        if not are_computed:
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
    """The format that a node's values have: their own, or float32 where nodes have no such thing."""
    found = graph.format(value)
    if found == DOUBLE:
        raise ValueError("float64 is not exported; take `model.float()`")
    return FLOAT if found == BFLOAT16 else found


def _beside(graph: Graph, tensor: Value, kind: int) -> Value:
    """A tensor in a format that is read beside values of this one."""
    return tensor if graph.format(tensor) in (FLOAT, kind) else graph.node("Cast", tensor, to=FLOAT)


def _refuse_points(target: str, levels: Levels) -> None:
    if target in ("mmdeploy", "tensorrt") and not levels.have_equal_points:
        raise ValueError(
            f"levels have different numbers of points, {levels.points}, for which the node of the target "
            f'"{target}" has no words; the targets "msdeform" and "gridsample" can do that'
        )
