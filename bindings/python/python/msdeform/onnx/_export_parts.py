"""Locations from offsets and weights from logits as standard nodes, in float32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._export_graph import FLOAT, Graph, Value, cast, integers, number, part_of
from ._export_levels import Levels


class Rule(NamedTuple):
    """The options of the fused operator."""

    offset_scale: float
    anchors: bool
    softmax: bool
    nearest: bool


def locations_of(graph: Graph, references: Value, offsets: Value, levels: Levels, rule: Rule) -> Value:
    """The sampling locations, `[N, Lq, M, samples, 2]`."""
    points = levels.points
    count, coordinates = graph.sizes(references)[2:]
    if count is None or coordinates is None:
        raise ValueError(
            f"`reference_points` has shape {graph.sizes(references)}: the number of references must be known when the "
            "model is exported; export it with a fixed one"
        )
    around = cast(graph, references, FLOAT)
    if rule.anchors or count != 1:
        turns = [point % count if rule.anchors else level for level, each in enumerate(points) for point in range(each)]
        around = graph.node("Gather", around, integers(graph, *turns), axis=2)
    # An axis for the heads, which share the references.
    around = graph.node("Unsqueeze", around, integers(graph, 2))
    steps = graph.node("Reshape", cast(graph, offsets, FLOAT), integers(graph, 0, 0, 0, -1, 2))
    if coordinates == 2:
        found = graph.node("Add", around, graph.node("Div", steps, levels.sizes(graph)))
    else:
        shares = np.array([[rule.offset_scale / each] for each in points for _ in range(each)], dtype=np.float32)
        centres, extents = (part_of(graph, around, first, first + 2, axis=4) for first in (0, 2))
        scaled = graph.node("Mul", graph.node("Mul", steps, graph.constant(shares)), extents)
        found = graph.node("Add", centres, scaled)
    if not rule.nearest:
        return found
    sizes, half = levels.sizes(graph), number(graph, 0.5)
    pixels = graph.node("Floor", graph.node("Add", graph.node("Mul", found, sizes), half))
    pixels = graph.node("Max", pixels, number(graph, 0.0))
    last = graph.node("Sub", sizes, number(graph, 1.0))
    return graph.node("Div", graph.node("Add", graph.node("Min", pixels, last), half), sizes)


def weights_of(graph: Graph, logits: Value, rule: Rule) -> Value:
    """The attention weights, `[N, Lq, M, samples]`."""
    wide = graph.node("Reshape", cast(graph, logits, FLOAT), integers(graph, 0, 0, 0, -1))
    if not rule.softmax:
        return wide
    # A logit of -inf has weight 0, but the softmax of a row in which all logits are -inf is NaN.
    is_nothing = graph.node("Equal", wide, number(graph, -np.inf))
    return graph.node("Where", is_nothing, number(graph, 0.0), graph.node("Softmax", wide, axis=-1))
