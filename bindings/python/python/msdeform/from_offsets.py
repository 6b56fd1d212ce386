"""The operator with all that models have around it: from raw projections to the output."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _operators, _parts, operator
from ._autograd import ordinary
from ._levels import shared_points
from ._operators import FUSED
from ._tensor import attend, autocast_enabled, resolve_levels
from ._tracing import is_traced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._typing import Points, Shapes, Starts

__all__ = ["ms_deform_attn_from_offsets"]


@overload
def ms_deform_attn_from_offsets(
    value: Tensor,
    spatial_shapes: Shapes,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    *,
    level_start_index: Starts | None = None,
    points: Points | None = None,
    offset_scale: float = 0.5,
    anchors: bool = False,
    softmax: bool = True,
    nearest: bool = False,
    return_weights: Literal[False] = False,
    deterministic: bool | None = None,
) -> Tensor: ...
@overload
def ms_deform_attn_from_offsets(
    value: Tensor,
    spatial_shapes: Shapes,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    *,
    level_start_index: Starts | None = None,
    points: Points | None = None,
    offset_scale: float = 0.5,
    anchors: bool = False,
    softmax: bool = True,
    nearest: bool = False,
    return_weights: Literal[True],
    deterministic: bool | None = None,
) -> tuple[Tensor, Tensor]: ...
def ms_deform_attn_from_offsets(
    value: Tensor,
    spatial_shapes: Any,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    *,
    level_start_index: Any = None,
    points: Points | None = None,
    offset_scale: float = 0.5,
    anchors: bool = False,
    softmax: bool = True,
    nearest: bool = False,
    return_weights: bool = False,
    deterministic: bool | None = None,
) -> Any:
    """Multi-scale deformable attention from what a model's linear layers give.

    Locations are `reference + offset * s`, weights the softmax of the logits over all levels and points of a query and
    head. `s` is one pixel of the level where references are points, and `size * offset_scale / P` where they are boxes.

    Args:
        value: `[N, S, M, D]`; images, pixels of all levels, heads, channels.
        spatial_shapes: as of `ms_deform_attn`.
        reference_points: `[N, Lq, R, 2]`, points (x, y) in [0, 1], or `[N, Lq, R, 4]`, boxes (x, y, width, height).
            `R` is the number of levels, 1 for all of them, or any number of `anchors`. Axes `N` and `Lq` may be 1. Any
            floating-point format.
        sampling_offsets: `[N, Lq, M, L, P, 2]`, or `[N, Lq, M, samples, 2]`.
        attention_logits: `[N, Lq, M, L, P]`, or `[N, Lq, M, samples]`. Both may be views of one projection: rows
            of a query are read where they are.
        level_start_index: as of `ms_deform_attn`.
        points: number of points of each level, a list; or one number for all. Needed only where they differ.
        offset_scale: the part of a box that an offset of one is, in a level of one point.
        anchors: `R` is a number of anchors; point `p` of every level starts from anchor `p % R` (BEVFormer). An
            anchor is a point or a box; an offset from a box is a part of that box, as without `anchors`.
        softmax: `False` takes the logits as weights.
        nearest: takes the nearest pixel instead of interpolating (`method="discrete"` of RT-DETRv2). Offsets and
            references have no gradient then.
        return_weights: also returns the weights, in the shape of the logits.
        deterministic: `True` makes gradients bitwise reproducible. `None` follows
            `torch.use_deterministic_algorithms`. If that setting is on, `False` does not turn it off.

    Returns:
        `[N, Lq, M * D]`, in the dtype of `value`; with `return_weights`, a pair of this output and the weights.

    Coordinates are computed in float32 or better for every dtype. The gradient keeps only the arguments.
    """
    output: Tensor | None = None
    tensors = (value, reference_points, sampling_offsets, attention_logits)
    options = (offset_scale, anchors, softmax, nearest)
    if (
        level_start_index is None
        and points is None
        and not (torch.compiler.is_compiling() or autocast_enabled() or forward_ad._current_level >= 0)
    ):
        # Most calls: levels that follow each other.
        output = ordinary(FUSED.numbers, tensors, spatial_shapes, True, options, bool(deterministic))
    if output is None:
        output = _attend_any(tensors, spatial_shapes, level_start_index, points, options, bool(deterministic))
    if not return_weights:
        return output
    flat = attention_logits.flatten(3)
    return output, (flat.softmax(-1) if softmax else flat).view(attention_logits.shape)


def _attend_any(
    tensors: tuple[Tensor, ...],
    spatial_shapes: Any,
    level_start_index: Any,
    points: Points | None,
    options: tuple[Any, ...],
    deterministic: bool,
) -> Tensor:
    """The output of any call, and the error messages for a wrong one."""
    for each, tensor in zip(FUSED.inputs, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor):
            kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
            raise TypeError(f"`{each.name}` is a {kind}, expected a torch.Tensor")
    shape = tensors[1].shape
    if len(shape) != 4 or shape[3] not in (2, 4):
        raise ValueError(f"`reference_points` has shape {list(shape)}, expected {FUSED.inputs[1].shape}")
    place = tensors[0].device.type
    if place in ("cpu", "cuda") and torch.is_autocast_enabled(place):
        tensors = operator.autocast_tensors(tensors)
    value, references, offsets, logits = operator.sampling_tensors(tensors)
    references = _expanded(references, offsets.shape)
    traced = is_traced()
    levels, unread = resolve_levels(value, spatial_shapes, level_start_index, points, offsets.shape, traced)
    if levels is not None and not traced:
        levels = _integers(levels)
    if levels is not None and _operators.is_one_pass(value.device):
        return operator.call(FUSED, (value, references, offsets, logits), levels, options, deterministic)
    if levels is None:
        shapes, starts, _ = unread
        found = shared_points(offsets.shape, points, shapes.shape[0])
        counts = [found] * shapes.shape[0] if isinstance(found, int) else found
    else:
        shapes, starts = list(zip(levels[::4], levels[1::4], strict=True)), levels[2::4]
        counts = levels[3::4]
    locations, weights = _parts.samples(references, offsets, logits, shapes, counts, options)
    return attend(value, shapes, starts, locations, weights, counts, deterministic)


def _expanded(references: Tensor, offsets_shape: Sequence[int]) -> Tensor:
    """One set for every image and query."""
    if len(offsets_shape) < 2 or references.shape[:2] == offsets_shape[:2]:
        return references
    try:
        return references.expand(offsets_shape[0], offsets_shape[1], -1, -1)
    except RuntimeError as error:
        raise ValueError(
            f"`reference_points` has shape {list(references.shape)}, expected [{offsets_shape[0]} or 1, "
            f"{offsets_shape[1]} or 1, references, 2 or 4]"
        ) from error


def _integers(levels: list[int]) -> list[int]:
    """Plain integers: the dispatcher takes no others, and its own error does not name the argument."""
    found = []
    for place, number in enumerate(levels):
        try:
            found.append(index(number))
        except TypeError as error:
            name = ("spatial_shapes", "spatial_shapes", "level_start_index", "points")[place % 4]
            raise TypeError(f"`{name}` must hold integers, found {number!r}") from error
    return found
