"""Both operators in a few lines of plain PyTorch, the plain one in NumPy too, to read and to compare with.

The functions are slow and keep every sample in memory. On tensors they have all derivatives, forward mode included. The
package computes second derivatives with them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ._levels import numbers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ._typing import Points, Scalar, Shapes, Starts

__all__ = ["ms_deform_attn", "ms_deform_attn_from_offsets"]


@overload
def ms_deform_attn(
    value: NDArray[Scalar],
    spatial_shapes: Shapes,
    level_start_index: Starts | None,
    sampling_locations: NDArray[Any],
    attention_weights: NDArray[Any],
    *,
    points: Points | None = None,
) -> NDArray[Scalar]: ...
@overload
def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Shapes,
    level_start_index: Starts | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    *,
    points: Points | None = None,
) -> Tensor: ...
def ms_deform_attn(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    sampling_locations: Any,
    attention_weights: Any,
    *,
    points: Points | None = None,
) -> Any:
    """Computes `msdeform.ms_deform_attn` by indexing and arithmetic alone, in float32 or better."""
    levels = numbers_of(value.shape, spatial_shapes, level_start_index, sampling_locations.shape, points)
    return attend(value, sampling_locations, attention_weights, levels)


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
) -> Tensor:
    """Computes `msdeform.ms_deform_attn_from_offsets` by PyTorch's own operations, in float32 or better."""
    levels = numbers_of(value.shape, spatial_shapes, level_start_index, sampling_offsets.shape, points)
    options = (offset_scale, anchors, softmax, nearest)
    return attend_fused(value, reference_points, sampling_offsets, attention_logits, levels, *options)


def attend(value: Any, locations: Any, weights: Any, levels: Sequence[int]) -> Any:
    """`ms_deform_attn` with the levels as numbers: height, width, start and points of each."""
    torch = sys.modules.get("torch")
    library = torch if torch is not None and isinstance(value, torch.Tensor) else np
    wide = library.promote_types(library.promote_types(value.dtype, locations.dtype), library.float32)
    batch, _pixels, heads, channels = value.shape
    queries, total = locations.shape[1], sum(levels[3::4])
    locations = _convert(locations, wide).reshape(batch, queries, heads, total, 2)
    weights = _convert(weights, wide).reshape(batch, queries, heads, total)
    # NaN, infinite and huge locations contribute nothing. Both -1 and everything beyond 2 are outside of every level.
    locations = library.where(abs(locations) <= 2.0, locations, -1.0)
    wide_value = _convert(value, wide)
    output = library.zeros((batch, queries, heads, channels), dtype=wide, **_place(library, value))
    first = 0
    for height, width, start, count in zip(levels[::4], levels[1::4], levels[2::4], levels[3::4], strict=True):
        samples = slice(first, first + count)
        image = wide_value[:, start : start + height * width]
        sampled = _bilinear(library, image, height, width, locations[:, :, :, samples])
        output = output + (weights[:, :, :, samples, None] * sampled).sum(3)
        first += count
    return _convert(output.reshape(batch, queries, heads * channels), value.dtype)


def attend_fused(
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    levels: Sequence[int],
    *options: Any,
    by: Callable[..., Any] = attend,
) -> Tensor:
    """`ms_deform_attn_from_offsets` with the levels as numbers, and `by` in place of `ms_deform_attn`."""
    from . import _parts

    shapes = list(zip(levels[::4], levels[1::4], strict=True))
    locations, weights = _parts.samples(references, offsets, logits, shapes, levels[3::4], options)
    result: Tensor = by(value, locations, weights, levels)
    return result


def _convert(array: Any, dtype: Any) -> Any:
    return array.astype(dtype) if isinstance(array, np.ndarray) else array.to(dtype)


def _place(library: Any, array: Any) -> dict[str, Any]:
    return {} if library is np else {"device": array.device}


def _bilinear(library: Any, image: Any, height: int, width: int, locations: Any) -> Any:
    """The image `[N, H * W, M, D]` at `[N, Lq, M, P, 2]`, zero outside: `[N, Lq, M, P, D]`.

    The centre of pixel (0, 0) is at (0.5, 0.5) pixels: `align_corners=False`.
    """
    x, y = locations[..., 0] * width - 0.5, locations[..., 1] * height - 0.5
    left, top = library.floor(x), library.floor(y)
    place = _place(library, image)
    images = library.arange(image.shape[0], **place)[:, None, None, None]
    heads = library.arange(image.shape[2], **place)[None, None, :, None]
    total: Any = 0
    for column, share_x in ((left, left + 1 - x), (left + 1, x - left)):
        for row, share_y in ((top, top + 1 - y), (top + 1, y - top)):
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            # Numbers far outside fit into no integer.
            within = [_convert(library.where(is_inside, number, 0.0), library.int64) for number in (row, column)]
            share = library.where(is_inside, share_x * share_y, 0.0)
            total = total + share[..., None] * image[images, within[0] * width + within[1], heads]
    return total
