"""The fused operator: from raw offsets and logits to the output."""

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
from ._tracing import is_spelled_out, is_traced, plain_number

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
    """Multi-scale deformable attention from the offsets and logits of a model's linear layers.

    Locations are `reference + offset * s`. Weights are the softmax of the logits over all levels and points of a query
    and head. `s` is one pixel of the level if references are points, and `size * offset_scale / P` if they are boxes.

    Args:
        value: `[N, S, M, D]`; images, pixels of all levels, heads, channels.
        spatial_shapes: as in `ms_deform_attn`.
        reference_points: `[N, Lq, R, 2]`, points (x, y) in [0, 1], or `[N, Lq, R, 4]`, boxes (x, y, width, height).
            `R` is the number of levels, 1 for all levels, or the number of `anchors`. Axes `N` and `Lq` may be 1.
            Any floating-point dtype.
        sampling_offsets: `[N, Lq, M, L, P, 2]`, or `[N, Lq, M, samples, 2]`.
        attention_logits: `[N, Lq, M, L, P]`, or `[N, Lq, M, samples]`. Offsets and logits may be views of one
            projection, which are read without a copy.
        level_start_index: as in `ms_deform_attn`.
        points: a list with the number of points of each level, or one number. Needed only if the numbers differ.
        offset_scale: the part of a box that an offset of one stands for, on a level with one point.
        anchors: `R` is a number of anchors; point `p` of every level starts from anchor `p % R` (BEVFormer). An
            anchor is a point or a box; an offset from a box is a part of that box, as without `anchors`.
        softmax: `False` uses the logits as weights.
        nearest: takes the nearest pixel instead of interpolating (`method="discrete"` of RT-DETRv2). Offsets and
            references then have no gradient.
        return_weights: also returns the weights, in the shape of the logits.
        deterministic: `True` makes gradients bitwise reproducible. `None` follows
            `torch.use_deterministic_algorithms`. If that setting is on, `False` does not turn it off.

    Returns:
        `[N, Lq, M * D]`, in the dtype of `value`; with `return_weights`, a pair of this output and the weights.

    Coordinates are computed in float32 or better for every dtype. For the gradient the call keeps only its arguments.
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
    if levels is not None and _operators.is_one_pass(value.device) and not (traced and is_spelled_out()):
        return operator.call(FUSED, (value, references, offsets, logits), levels, options, deterministic)
    if levels is None:
        shapes, starts, _ = unread
        found = plain_number(shared_points(offsets.shape, points, shapes.shape[0]))
        counts = [found] * shapes.shape[0] if isinstance(found, int) else found
    else:
        shapes, starts = list(zip(levels[::4], levels[1::4], strict=True)), levels[2::4]
        counts = levels[3::4]
    locations, weights = _parts.samples(references, offsets, logits, shapes, counts, options)
    return attend(value, shapes, starts, locations, weights, counts, deterministic)


def _expanded(references: Tensor, offsets_shape: Sequence[int]) -> Tensor:
    """Expands references to every image and query."""
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
    """The levels as plain integers. The dispatcher accepts nothing else, and its error does not name the argument."""
    found = []
    for place, number in enumerate(levels):
        try:
            found.append(index(number))
        except TypeError as error:
            name = ("spatial_shapes", "spatial_shapes", "level_start_index", "points")[place % 4]
            raise TypeError(f"`{name}` must hold integers, found {number!r}") from error
    return found
