"""Which nodes a call becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _export_gridsample
from ._export_graph import BFLOAT16, DOUBLE, FLOAT, INT32, INT64, Graph, Value
from ._export_parts import Rule, cast, locations_of, weights_of

__all__ = ["Rule", "attend", "attend_from_offsets", "attend_reading"]

MMDEPLOY = "mmdeploy::MMCVMultiScaleDeformableAttention"
TENSORRT = "trt.plugins::MultiscaleDeformableAttnPlugin_TRT"


@dataclass(frozen=True)
class _Levels:
    """The levels of a call: their points, and their sizes as numbers or as tensors."""

    points: list[int]
    # (height, width, start) of each level; integers, or scalars of the graph.
    numbers: list[tuple[Any, Any, Any]] | None
    shapes: Value = None
    starts: Value = None

    @property
    def have_equal_points(self) -> bool:
        return len(set(self.points)) <= 1

    def plain(self) -> list[tuple[int, int, int]] | None:
        """All of them as integers, if the graph was made for one image size."""
        if self.numbers is None or not all(isinstance(number, int) for level in self.numbers for number in level):
            return None
        return self.numbers


def attend(graph: Graph, target: str, value: Value, locations: Value, weights: Value, levels: list[Any]) -> Value:
    """The operator with its levels as a list, four numbers each."""
    return _plain(graph, target, value, locations, weights, _of_list(levels))


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
            raise ValueError("the numbers of levels and of points are not known when the model is exported")
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
    levels = _Levels(list(points), numbers, spatial_shapes, level_start_index)
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
    found = _of_list(levels)
    if target == "msdeform":
        kind = _node_format(graph, value)
        attributes: dict[str, Any] = {} if found.have_equal_points else {"points": found.points}
        output = graph.node(
            "msdeform::MSDeformAttnFromOffsets",
            cast(graph, value, kind),
            *_level_tensors(graph, found, INT64),
            *(_beside(graph, tensor, kind) for tensor in (references, offsets, logits)),
            **attributes,
            offset_scale=rule.offset_scale,
            anchors=int(rule.anchors),
            softmax=int(rule.softmax),
            nearest=int(rule.nearest),
        )
        return output if kind == graph.format(value) else graph.node("Cast", output, to=graph.format(value))
    _refuse_points(target, found)
    sizes = found.plain()
    if sizes is None:
        raise ValueError(
            f'target "{target}" needs the sizes of the levels as numbers: export for one image size, or take the '
            'target "msdeform"'
        )
    locations = locations_of(
        graph, references, offsets, [(height, width) for height, width, _ in sizes], found.points, rule
    )
    weights = weights_of(graph, logits, sum(found.points), rule)
    return _plain(graph, target, value, locations, weights, found, are_computed=True)


def _plain(
    graph: Graph,
    target: str,
    value: Value,
    locations: Value,
    weights: Value,
    levels: _Levels,
    are_computed: bool = False,
) -> Value:
    """The node, or the nodes, of a target. Locations and weights that were computed here are float32, by samples."""
    kind = _node_format(graph, value)
    if target == "gridsample":
        return _export_gridsample.attend(graph, value, locations, weights, levels.plain(), levels.points, are_computed)
    if target == "msdeform":
        attributes: dict[str, Any] = {} if levels.have_equal_points else {"points": levels.points}
        given = [tensor if are_computed else _beside(graph, tensor, kind) for tensor in (locations, weights)]
        shapes, starts = _level_tensors(graph, levels, INT64)
        output = graph.node("msdeform::MSDeformAttn", cast(graph, value, kind), shapes, starts, *given, **attributes)
    else:
        _refuse_points(target, levels)
        # All of one format, and that of the coordinates: they are not rounded for the sake of the values.
        if are_computed or graph.format(locations) != kind or graph.format(weights) != kind:
            kind = FLOAT
        if not are_computed:
            locations, weights = cast(graph, locations, kind), cast(graph, weights, kind)
        axes = np.array([0, 0, 0, len(levels.points), levels.points[0]])
        locations = graph.node("Reshape", locations, graph.constant(np.append(axes, 2)))
        weights = graph.node("Reshape", weights, graph.constant(axes))
        name, integers = (MMDEPLOY, INT64) if target == "mmdeploy" else (TENSORRT, INT32)
        shapes, starts = _level_tensors(graph, levels, integers)
        step = {"im2col_step": 64} if target == "mmdeploy" else {}
        output = graph.node(name, cast(graph, value, kind), shapes, starts, locations, weights, **step)
        if target == "tensorrt":
            # Its heads and channels are axes of their own.
            joined = graph.constant(np.array([0, 0, _channels(graph, value)]))
            output = graph.node("Reshape", output, joined)
    return output if kind == graph.format(value) else graph.node("Cast", output, to=graph.format(value))


def _of_list(levels: list[Any]) -> _Levels:
    points = levels[3::4]
    if not all(isinstance(count, int) for count in points):
        raise ValueError("the numbers of points are not known when the model is exported")
    return _Levels(points, list(zip(levels[::4], levels[1::4], levels[2::4], strict=True)))


def _level_tensors(graph: Graph, levels: _Levels, integers: int) -> tuple[Value, Value]:
    """`spatial_shapes` `[L, 2]` and `level_start_index` `[L]`, constants where they can be."""
    dtype = np.int64 if integers == INT64 else np.int32
    plain = levels.plain()
    if plain is not None:
        array = np.array(plain, dtype=dtype).reshape(-1, 3)
        return graph.constant(array[:, :2].copy()), graph.constant(array[:, 2].copy())
    if levels.numbers is not None:
        one = graph.constant(np.array([1], dtype=np.int64))

        def stacked(numbers: list[Any], shape: list[int]) -> Value:
            pieces = [
                graph.constant(np.array([number], dtype=np.int64))
                if isinstance(number, int)
                else graph.node("Reshape", number, one)
                for number in numbers
            ]
            joined = graph.node("Concat", *pieces, axis=0)
            shaped = graph.node("Reshape", joined, graph.constant(np.array(shape, dtype=np.int64)))
            return shaped if integers == INT64 else graph.node("Cast", shaped, to=integers)

        sizes = [size for height, width, _ in levels.numbers for size in (height, width)]
        return stacked(sizes, [-1, 2]), stacked([start for _, _, start in levels.numbers], [-1])
    shapes = cast(graph, levels.shapes, INT64)
    if levels.starts is not None:
        starts = cast(graph, levels.starts, INT64)
    else:
        # Each level starts where the pixels of those before it end.
        height, width = (
            graph.node("Gather", shapes, graph.constant(np.array(side, dtype=np.int64)), axis=1) for side in (0, 1)
        )
        pixels = graph.node("Mul", height, width)
        starts = graph.node("CumSum", pixels, graph.constant(np.array(0, dtype=np.int64)), exclusive=1)
    if integers == INT64:
        return shapes, starts
    return graph.node("Cast", shapes, to=integers), graph.node("Cast", starts, to=integers)


def _node_format(graph: Graph, value: Value) -> int:
    """The format that a node's values have: their own, or float32 where nodes have no such thing."""
    found = graph.format(value)
    if found == DOUBLE:
        raise ValueError("float64 is not exported; take `model.float()`")
    return FLOAT if found == BFLOAT16 else found


def _beside(graph: Graph, tensor: Value, kind: int) -> Value:
    """A tensor in a format that is read beside values of this one."""
    return tensor if graph.format(tensor) in (FLOAT, kind) else graph.node("Cast", tensor, to=FLOAT)


def _channels(graph: Graph, value: Value) -> int:
    _, _, heads, channels = graph.sizes(value)
    if heads is None or channels is None:
        raise ValueError("the numbers of heads and channels are not known when the model is exported")
    return heads * channels


def _refuse_points(target: str, levels: _Levels) -> None:
    if target in ("mmdeploy", "tensorrt") and not levels.have_equal_points:
        raise ValueError(
            f"levels have different numbers of points, {levels.points}, for which the node of the target "
            f'"{target}" has no words; the targets "msdeform" and "gridsample" can do that'
        )
