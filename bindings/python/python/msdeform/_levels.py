"""The levels of a call as the native half wants them: height, width, start and points of each, in one list."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def flatten(
    spatial_shapes: Sequence[Sequence[int]],
    level_start_index: Sequence[int] | None,
    points: int | list[int],
) -> list[int]:
    """Puts the lists together. Without starts the levels follow each other.

    Sizes may be symbolic integers of a trace, so nothing here converts or compares them.
    """
    numbers: list[int] = []
    start = 0
    try:
        if level_start_index is None and not isinstance(points, (list, tuple)):
            # What almost every call is.
            for height, width in spatial_shapes:
                numbers += (height, width, start, points)
                start += height * width
            return numbers
        pairs = [(height, width) for height, width in spatial_shapes]
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"`spatial_shapes` must hold one (height, width) per level, found {spatial_shapes!r}"
        ) from error
    starts = level_start_index
    if starts is None:
        starts = []
        for height, width in pairs:
            starts.append(start)
            start += height * width
    counts = points if isinstance(points, (list, tuple)) else [points] * len(pairs)
    for name, given in (("level_start_index", starts), ("points", counts)):
        if len(given) != len(pairs):
            raise ValueError(f"`{name}` has {len(given)} entries for {len(pairs)} levels; give one per level")
    for (height, width), first, count in zip(pairs, starts, counts, strict=True):
        numbers += (height, width, first, count)
    return numbers


def shared_points(locations_shape: Sequence[int], points: Sequence[int] | None) -> int | list[int]:
    """Points per level: as given, or read off locations of the form [N, Lq, M, L, P, 2]."""
    if points is not None:
        try:
            counts = list(points)
        except TypeError as error:
            raise TypeError(f"`points` must hold the number of points of each level, found {points!r}") from error
        if any(isinstance(count, float) or (isinstance(count, int) and count < 0) for count in counts):
            raise ValueError(f"`points` must hold one number of points, 0 or more, per level, found {points!r}")
        return counts
    if len(locations_shape) != 6:
        raise ValueError(
            f"`sampling_locations` has shape {list(locations_shape)}; expected [batch, queries, heads, "
            "levels, points, 2], or [batch, queries, heads, samples, 2] together with `points=[...]`, the "
            "number of points of each level"
        )
    return locations_shape[4]


def plain_shapes(spatial_shapes: Any) -> list[tuple[int, int]]:
    """(height, width) pairs out of whatever iterates like them, as plain integers."""
    try:
        pairs = [tuple(operator.index(size) for size in pair) for pair in spatial_shapes]
    except TypeError as error:
        raise TypeError(
            f"`spatial_shapes` must hold one (height, width) of integers per level, found {spatial_shapes!r}"
        ) from error
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"`spatial_shapes` must hold pairs (height, width), found {pair}")
    return pairs  # type: ignore[return-value]


def plain_starts(level_start_index: Any) -> list[int] | None:
    """The first pixel of each level, as plain integers."""
    if level_start_index is None:
        return None
    try:
        return [operator.index(start) for start in level_start_index]
    except TypeError as error:
        raise TypeError(f"`level_start_index` must hold one integer per level, found {level_start_index!r}") from error
