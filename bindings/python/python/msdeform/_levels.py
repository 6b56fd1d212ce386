"""The levels of a call in one list, as the native half reads them: height, width, start and points of each level."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def flatten(
    spatial_shapes: Sequence[Sequence[int]], level_start_index: Sequence[int] | None, points: int | list[int]
) -> list[int]:
    """Joins the lists. Without starts the levels follow each other.

    Sizes may be symbolic integers of a trace, so this function neither converts nor compares them. Sizes may also be
    tensors, so it does not add to them in place.
    """
    numbers: list[int] = []
    start = 0
    try:
        if level_start_index is None and not isinstance(points, (list, tuple)):
            # Almost every call takes this path.
            for height, width in spatial_shapes:
                numbers += (height, width, start, points)
                start = start + height * width
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
            start = start + height * width
    counts = points if isinstance(points, (list, tuple)) else [points] * len(pairs)
    for name, given in (("level_start_index", starts), ("points", counts)):
        if len(given) != len(pairs):
            raise ValueError(f"`{name}` has {len(given)} entries for {len(pairs)} levels; give one per level")
    for (height, width), first, count in zip(pairs, starts, counts, strict=True):
        numbers += (height, width, first, count)
    return numbers


def numbers_of(
    value_shape: Sequence[int],
    spatial_shapes: Any,
    level_start_index: Any,
    samples_shape: Sequence[int],
    points: int | Sequence[int] | None,
) -> list[int]:
    """The levels of a call, of any iterables. Without starts the levels must cover all pixels of the value."""
    shapes, starts = plain_shapes(spatial_shapes), plain_starts(level_start_index)
    levels = flatten(shapes, starts, shared_points(samples_shape, points, len(shapes)))
    if level_start_index is None and len(value_shape) == 4:
        check_pixels(levels, value_shape[1])
    return levels


def end_of(levels: Sequence[int]) -> int:
    """The pixel after the last level, of levels that follow each other."""
    return levels[-4] * levels[-3] + levels[-2] if levels else 0


def check_pixels(levels: Sequence[int], pixels: int) -> None:
    """Refuses levels without `level_start_index` that do not cover all pixels of the value.

    Without this check a call with a missing level would silently read the wrong pixels.
    """
    end = end_of(levels)
    if end != pixels:
        pairs = list(zip(levels[::4], levels[1::4], strict=True))
        # If a level is empty, the native half reports the error with its number.
        if all(height > 0 and width > 0 for height, width in pairs):
            raise ValueError(
                f"`value` has {pixels} pixels, but the levels of `spatial_shapes` {pairs} have {end}; values with gaps "
                "between levels need `level_start_index`, as a list or in host memory"
            )


def shared_points(
    locations_shape: Sequence[int], points: int | Sequence[int] | None, levels: int | None = None
) -> int | list[int]:
    """Points per level: the argument, or a number that follows from the shape of the locations.

    The shape [N, Lq, M, L, P, 2] contains the number. For [N, Lq, M, L * P, 2] the number of `levels` must be known.
    """
    if points is not None:
        return given_points(points)
    if len(locations_shape) == 6:
        return locations_shape[4]
    if len(locations_shape) == 5 and locations_shape[4] == 2 and levels is not None:
        samples = locations_shape[3]
        if levels == 0 and samples == 0:
            return 0
        if levels > 0 and samples % levels == 0:
            return samples // levels
        raise ValueError(
            f"`sampling_locations` has shape {list(locations_shape)}: {samples} samples are not the same number of "
            f"points on each of {levels} levels; give `points=[...]`, the number of points of each level"
        )
    raise ValueError(
        f"`sampling_locations` has shape {list(locations_shape)}; expected [batch, queries, heads, "
        "levels, points, 2], or [batch, queries, heads, samples, 2] with `points=[...]` if levels have different "
        "numbers of points"
    )


def given_points(points: Any, name: str = "points") -> int | list[int]:
    """The argument `points`: one number for all levels, or a list with a number for each."""
    wrong = f"`{name}` must be a number of points, 0 or more, or a list with the number of each level"
    try:
        counts = [points] if isinstance(points, int) else list(points)
    except TypeError as error:
        try:
            return operator.index(points)  # An integer of NumPy.
        except TypeError:
            raise TypeError(f"{wrong}; found {points!r}") from error
    for count in counts:
        if isinstance(count, (bool, float, str, list, tuple, type(None))) or (isinstance(count, int) and count < 0):
            raise ValueError(f"{wrong}; found {points!r}")
    return points if isinstance(points, int) else counts


def plain_shapes(spatial_shapes: Any) -> list[tuple[int, int]]:
    """(height, width) pairs of plain integers, from any iterable of pairs."""
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
