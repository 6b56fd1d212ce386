"""The levels of an exported call: numbers, sizes computed from the image's size, or tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._export_graph import INT64, Graph, Value, cast, integers


@dataclass(frozen=True)
class Levels:
    """Points of each level, and sizes and starts in one of the three forms."""

    points: list[int]
    # (height, width, start) of each level; integers, or scalars of the graph.
    numbers: list[tuple[Any, Any, Any]] | None
    # `spatial_shapes` and `level_start_index`, where there are no numbers; without starts levels follow each other.
    shapes: Value = None
    starts: Value = None

    @staticmethod
    def of_list(levels: list[Any]) -> Levels:
        """Of height, width, start and points of each level, in one list."""
        points = levels[3::4]
        if not all(isinstance(count, int) for count in points):
            raise ValueError("the numbers of points are not known when the model is exported; export fixed ones")
        return Levels(points, list(zip(levels[::4], levels[1::4], levels[2::4], strict=True)))

    @property
    def have_equal_points(self) -> bool:
        """Whether all levels have the same number of points."""
        return len(set(self.points)) <= 1

    def plain(self) -> list[tuple[int, int, int]] | None:
        """All of them as integers, if the graph is made for one image size."""
        if self.numbers is None or not all(isinstance(number, int) for level in self.numbers for number in level):
            return None
        return self.numbers

    def tensors(self, graph: Graph, integers: int = INT64) -> tuple[Value, Value]:
        """`spatial_shapes` `[L, 2]` and `level_start_index` `[L]`, constants where they can be."""
        plain = self.plain()
        if plain is not None:
            array = np.array(plain, dtype=np.int64 if integers == INT64 else np.int32).reshape(-1, 3)
            return graph.constant(array[:, :2].copy()), graph.constant(array[:, 2].copy())
        if self.numbers is not None:
            sizes = [size for height, width, _ in self.numbers for size in (height, width)]
            shapes = _stacked(graph, sizes, [-1, 2])
            starts = _stacked(graph, [start for _, _, start in self.numbers], [-1])
        else:
            shapes = cast(graph, self.shapes, INT64)
            starts = _starts_after(graph, shapes) if self.starts is None else cast(graph, self.starts, INT64)
        if integers == INT64:
            return shapes, starts
        return graph.node("Cast", shapes, to=integers), graph.node("Cast", starts, to=integers)

    def sides(self, graph: Graph) -> list[tuple[Value, Value, Value]]:
        """(height, width, start) of each level, tensors of one number."""
        if self.numbers is not None:
            return [
                (_one(graph, height), _one(graph, width), _one(graph, start)) for height, width, start in self.numbers
            ]
        shapes, starts = self.tensors(graph)
        sizes = graph.node("Reshape", shapes, _one(graph, -1))

        def at(tensor: Value, place: int) -> Value:
            return graph.node("Gather", tensor, _one(graph, place), axis=0)

        return [(at(sizes, 2 * each), at(sizes, 2 * each + 1), at(starts, each)) for each in range(len(self.points))]


def _one(graph: Graph, number: Any) -> Value:
    if isinstance(number, int):
        return integers(graph, number)
    return graph.node("Reshape", number, _one(graph, 1))


def _stacked(graph: Graph, numbers: list[Any], shape: list[int]) -> Value:
    joined = graph.node("Concat", *(_one(graph, number) for number in numbers), axis=0)
    return graph.node("Reshape", joined, integers(graph, *shape))


def _starts_after(graph: Graph, shapes: Value) -> Value:
    """Each level starts where the pixels of those before it end."""
    height, width = (
        graph.node("Gather", shapes, graph.constant(np.array(side, dtype=np.int64)), axis=1) for side in (0, 1)
    )
    first = graph.constant(np.array(0, dtype=np.int64))
    return graph.node("CumSum", graph.node("Mul", height, width), first, exclusive=1)
