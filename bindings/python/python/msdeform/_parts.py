"""Locations and weights of the fused operator in PyTorch's own operations, for calls without a fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._levels import plain_shapes
from ._tracing import is_traced, plain_number


def samples(
    references: Tensor, offsets: Tensor, logits: Tensor, shapes: Any, points: Sequence[int], options: Sequence[Any]
) -> tuple[Tensor, Tensor]:
    """Locations and weights of a fused call, in float32 or better. `options` are the options of the operator."""
    offset_scale, anchors, softmax, nearest = options
    wide = torch.promote_types(offsets.dtype, torch.float32)
    flat = (offsets.flatten(3, 4) if offsets.dim() == 6 else offsets).to(wide)
    found = locations(references, flat, shapes, points, offset_scale=offset_scale, anchors=anchors, nearest=nearest)
    return found, weights(logits.to(wide).flatten(3), softmax)


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
    """The sampling locations `[N, Lq, M, samples, 2]` of offsets `[N, Lq, M, samples, 2]`, in their dtype."""
    around = _per_sample(references.to(offsets.dtype), points, anchors)[:, :, None]
    if references.shape[3] == 2:
        found = around + offsets / _sizes(shapes, points, offsets)
    else:
        found = around[..., :2] + offsets * _shares(points, offset_scale, offsets) * around[..., 2:]
    if not nearest:
        return found
    sizes = _sizes(shapes, points, offsets)
    pixels = (found.detach() * sizes + 0.5).floor()
    return (torch.minimum(pixels.clamp(min=0), sizes - 1) + 0.5) / sizes


def weights(logits: Tensor, softmax: bool) -> Tensor:
    """The weights of logits `[N, Lq, M, samples]`. A row whose logits are all `-inf` has weights of zero."""
    if not softmax:
        return logits
    # Not by `all`, which PyTorch's exporter to ONNX does not write for opset 16 and 17.
    is_empty = (logits != -torch.inf).sum(-1, keepdim=True) == 0
    # Masked before and after, because the softmax of an empty row and its gradient would be NaN.
    return logits.masked_fill(is_empty, 0.0).softmax(-1).masked_fill(is_empty, 0.0)


def _per_sample(references: Tensor, points: Sequence[int], anchors: bool) -> Tensor:
    """The reference of every sample, `[N, Lq, samples, 2 or 4]`. A single reference stays single.

    It uses no lists of indices, because they would have to be copied to the GPU.
    """
    count, levels = plain_number(references.shape[2]), len(points)
    if anchors:
        turns = [references.repeat(1, 1, -(-each // max(count, 1)), 1)[:, :, :each] for each in points]
        return torch.cat(turns, dim=2)
    if count == levels and len(set(points)) == 1:
        return references[:, :, :, None].expand(-1, -1, -1, points[0], -1).flatten(2, 3)
    if count == levels:
        pieces = [references[:, :, level : level + 1].expand(-1, -1, each, -1) for level, each in enumerate(points)]
        return torch.cat(pieces, dim=2) if pieces else references
    if count == 1:
        return references
    raise ValueError(
        f"`reference_points` has shape {list(references.shape)}, expected {levels} references, one for each level, or "
        "1 for all; give `anchors=True` if they are anchors"
    )


def _is_recorded() -> bool:
    """Whether operations become part of a graph, whose sizes may be symbolic."""
    return is_traced() or torch._C._len_torch_dispatch_stack() > 0


# Small constants by key. They are made once per image size, so that a call copies nothing to the GPU.
_constants: dict[Any, Tensor] = {}
_MOST_CONSTANTS = 256


def _constant(key: tuple[Any, ...], like: Tensor, make: Callable[[], Any]) -> Tensor:
    def made() -> Tensor:
        return torch.tensor(make(), dtype=like.dtype, device=like.device)

    # A tensor made inside of a transform belongs to that transform, so it is not kept.
    if _is_recorded() or torch._C._are_functorch_transforms_active():
        return made()
    key = (*key, like.device, like.dtype)
    found = _constants.get(key)
    if found is None:
        if len(_constants) >= _MOST_CONSTANTS:
            _constants.clear()
        with torch.inference_mode(False), torch.no_grad():
            found = made()
        if type(found) is Tensor:  # A fake tensor has no numbers.
            _constants[key] = found
    return found


def _sizes(shapes: Any, points: Sequence[int], like: Tensor) -> Tensor:
    """(width, height) of the level of each sample, `[samples, 2]`."""
    if not isinstance(shapes, Tensor) and any(isinstance(size, torch.SymInt) for pair in shapes for size in pair):
        # Not by `torch.tensor`, which makes constants of sizes that are open.
        shapes = torch.stack([torch.scalar_tensor(size) for pair in shapes for size in pair]).view(-1, 2)
    if isinstance(shapes, Tensor):
        sizes = shapes.to(device=like.device, dtype=like.dtype).flip(-1)
        return _per_sample(sizes[None, None], points, False).view(-1, 2)
    pairs = list(shapes) if _is_recorded() else plain_shapes(shapes)

    def make() -> Any:
        return [(width, height) for (height, width), each in zip(pairs, points, strict=True) for _ in range(each)]

    return _constant(("sizes", *map(tuple, pairs), *points), like, make).view(-1, 2)


def _shares(points: Sequence[int], offset_scale: float, like: Tensor) -> Tensor:
    """The part of a box that an offset of one stands for, for each sample, `[samples, 1]`."""

    def make() -> Any:
        return [offset_scale / each for each in points for _ in range(each)]

    return _constant(("shares", offset_scale, *points), like, make).view(-1, 1)
