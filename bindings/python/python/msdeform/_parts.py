"""What models have around the operator, by PyTorch's own operations: where there is no kernel for the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._levels import plain_shapes
from ._tracing import is_traced

__all__ = ["location_gradients", "locations"]


def locations(
    references: Tensor,
    offsets: Tensor,
    shapes: Any,
    points: Sequence[int],
    *,
    offset_scale: float = 0.5,
    anchors: bool = False,
    nearest: bool = False,
) -> Tensor:
    """The sampling locations `[N, Lq, M, samples, 2]` of offsets `[N, Lq, M, samples, 2]`, in their format."""
    around = _per_sample(references.to(offsets.dtype), points, anchors)[:, :, None]
    if references.shape[3] == 2:
        found = around + offsets / _sizes(shapes, points, offsets)
    else:
        found = around[..., :2] + offsets * _shares(points, offset_scale, offsets) * around[..., 2:]
    if not nearest:
        return found
    sizes = _sizes(shapes, points, offsets)
    pixels = (found.detach() * sizes + 0.5).trunc()
    return (torch.minimum(pixels.clamp(min=0), sizes - 1) + 0.5) / sizes


def location_gradients(
    references: Tensor,
    offsets: Tensor,
    grad_locations: Tensor,
    shapes: Any,
    points: Sequence[int],
    *,
    offset_scale: float,
    anchors: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients by references and offsets of those by locations `[N, Lq, M, samples, 2]`, in the format of these.

    By hand: kernels of operators are called where PyTorch records nothing.
    """
    wide = grad_locations.dtype
    by_reference = grad_locations.sum(2)
    if references.shape[3] == 2:
        by_offset = grad_locations / _sizes(shapes, points, grad_locations)
    else:
        shares = _shares(points, offset_scale, grad_locations)
        around = _per_sample(references.to(wide), points, anchors)[:, :, None]
        by_offset = grad_locations * shares * around[..., 2:]
        by_size = grad_locations * shares * offsets.to(wide).reshape(grad_locations.shape)
        # What does not count passes nothing on, even where its offset is infinite.
        by_size = by_size.masked_fill(grad_locations == 0, 0.0)
        by_reference = torch.cat([by_reference, by_size.sum(2)], dim=-1)
    count = references.shape[2]
    if anchors:
        turns = [point % count for each in points for point in range(each)]
    else:
        turns = [level if count == len(points) else 0 for level, each in enumerate(points) for _ in range(each)]
    index = torch.tensor(turns, device=references.device)
    summed = torch.zeros(references.shape, dtype=wide, device=references.device)
    return summed.index_add(2, index, by_reference), by_offset.reshape(offsets.shape)


def _per_sample(references: Tensor, points: Sequence[int], anchors: bool) -> Tensor:
    """The reference of every sample, `[N, Lq, samples, 2 or 4]`; one for all stays one. Without lists of indices, which
    a GPU would have to be sent."""
    count, levels = references.shape[2], len(points)
    if anchors:
        turns = [references.repeat(1, 1, -(-each // max(count, 1)), 1)[:, :, :each] for each in points]
        return torch.cat(turns, dim=2)
    if count == levels and len(set(points)) == 1:
        return references.repeat_interleave(points[0], dim=2)
    if count == levels:
        pieces = [references[:, :, level : level + 1].expand(-1, -1, each, -1) for level, each in enumerate(points)]
        return torch.cat(pieces, dim=2) if pieces else references
    if count == 1:
        return references
    raise ValueError(
        f"`reference_points` has shape {list(references.shape)}, expected {levels} references, one for each level, or "
        "1 for all; give `anchors=True` where they are anchors"
    )


# Small constants, by what they are made of: made once per image size, not sent to the GPU at every call.
_constants: dict[Any, Tensor] = {}
_MOST_CONSTANTS = 256


def _constant(key: tuple[Any, ...], like: Tensor, make: Callable[[], Any]) -> Tensor:
    def made() -> Tensor:
        return torch.tensor(make(), dtype=like.dtype, device=like.device)

    if is_traced():
        return made()
    key = (*key, like.device, like.dtype)
    found = _constants.get(key)
    if found is None:
        if len(_constants) >= _MOST_CONSTANTS:
            _constants.clear()
        with torch.inference_mode(False), torch.no_grad():
            found = made()
        _constants[key] = found
    return found


def _sizes(shapes: Any, points: Sequence[int], like: Tensor) -> Tensor:
    """(width, height) of the level of each sample, `[samples, 2]`."""
    if isinstance(shapes, Tensor):
        sizes = shapes.to(device=like.device, dtype=like.dtype).flip(-1)
        return _per_sample(sizes[None, None], points, False).view(-1, 2)
    pairs = list(shapes) if is_traced() else plain_shapes(shapes)

    def make() -> Any:
        return [(width, height) for (height, width), each in zip(pairs, points, strict=True) for _ in range(each)]

    return _constant(("sizes", *map(tuple, pairs), *points), like, make).view(-1, 2)


def _shares(points: Sequence[int], offset_scale: float, like: Tensor) -> Tensor:
    """What of a box an offset of one is, for each sample, `[samples, 1]`."""

    def make() -> Any:
        return [offset_scale / each for each in points for _ in range(each)]

    return _constant(("shares", offset_scale, *points), like, make).view(-1, 1)
