"""The operator by standard nodes: one `GridSample` for each level. Needs opset 16, tensors of at most five axes, and
level sizes that are known; batch and queries may be anything. All arithmetic is float32."""

from __future__ import annotations

from ._export_graph import FLOAT, Graph, Value, cast, integers, number, part_of
from ._export_levels import Levels

# In the units of a grid, -1 to 1 from border to border, this is outside of every level and of the zeros around it.
_OUTSIDE = 3.0


def attend(graph: Graph, value: Value, locations: Value, weights: Value, levels: Levels) -> Value:
    """The output `[N, Lq, M * D]`."""
    if levels.numbers is None and not all(
        graph.follows_from_sizes(tensor) for tensor in (levels.shapes, levels.starts) if tensor is not None
    ):
        raise ValueError(
            'target "gridsample" needs level sizes that follow from the model and the size of its inputs: pass '
            '`spatial_shapes` as a list, or take the target "msdeform", "mmdeploy" or "tensorrt", whose nodes read them'
        )
    _, _, heads, channels = graph.sizes(value)
    samples = sum(levels.points)
    if heads is None or channels is None:
        raise ValueError("the numbers of heads and channels are not known when the model is exported")
    if samples == 0:
        raise ValueError("a call without samples is not exported")

    grids = _by_heads(graph, locations, samples * 2)
    grids = graph.node("Reshape", grids, integers(graph, 0, 0, -1, 2))
    grids = graph.node("Sub", graph.node("Mul", grids, number(graph, 2.0)), number(graph, 1.0))
    # What is far outside, infinite or NaN counts for nothing; runtimes differ in what they make of it.
    is_near = graph.node("Less", graph.node("Abs", grids), number(graph, _OUTSIDE))
    grids = graph.node("Where", is_near, grids, number(graph, _OUTSIDE))
    channels_first = graph.node("Transpose", cast(graph, value, FLOAT), perm=[0, 2, 3, 1])
    sampled, done = [], 0
    for level, each in enumerate(levels.points):
        if each > 0:
            image = _image(graph, channels_first, channels, levels, level)
            grid = part_of(graph, grids, done, done + each, axis=2)
            sampled.append(
                graph.node("GridSample", image, grid, align_corners=0, mode="bilinear", padding_mode="zeros")
            )
            done += each
    # [N * M, D, Lq, samples]
    joined = graph.node("Concat", *sampled, axis=3) if len(sampled) > 1 else sampled[0]
    factors = _by_heads(graph, weights, samples)
    factors = graph.node("Unsqueeze", factors, integers(graph, 1))
    summed = graph.node("ReduceSum", graph.node("Mul", joined, factors), integers(graph, -1), keepdims=0)
    merged = graph.node("Reshape", summed, integers(graph, -1, heads * channels, 0))
    output = graph.node("Transpose", merged, perm=[0, 2, 1])
    kind = graph.format(value)
    return output if kind == FLOAT else graph.node("Cast", output, to=kind)


def _image(graph: Graph, channels_first: Value, channels: int, levels: Levels, level: int) -> Value:
    """The pixels of a level, `[N * M, D, H, W]`."""
    plain = levels.plain()
    if plain is not None:
        height, width, start = plain[level]
        pixels = part_of(graph, channels_first, start, start + height * width, axis=3)
        return graph.node("Reshape", pixels, integers(graph, -1, channels, height, width))
    height, width, start = levels.sides(graph)[level]
    end = graph.node("Add", start, graph.node("Mul", height, width))
    pixels = graph.node("Slice", channels_first, start, end, integers(graph, 3))
    shape = graph.node("Concat", integers(graph, -1, channels), height, width, axis=0)
    return graph.node("Reshape", pixels, shape)


def _by_heads(graph: Graph, tensor: Value, numbers: int) -> Value:
    """`[N, Lq, M, ...]` as `[N * M, Lq, numbers]`, without asking how many images and queries there are.

    A zero of `Reshape` keeps the axis at its place, so queries wait in front while images and heads become one.
    """
    rows = graph.node("Reshape", cast(graph, tensor, FLOAT), integers(graph, 0, 0, 0, -1))
    queries_first = graph.node("Transpose", rows, perm=[1, 0, 2, 3])
    joined = graph.node("Reshape", queries_first, integers(graph, 0, -1, numbers))
    return graph.node("Transpose", joined, perm=[1, 0, 2])
