"""The operator in a few lines of plain PyTorch or NumPy: what it means, to read, to compare with, to differentiate.

Slow, and it keeps every sample in memory. On tensors all derivatives exist, second ones and forward mode included.
Nothing else in the package calls it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ._levels import check_pixels, flatten, plain_shapes, plain_starts, shared_points

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ._typing import Points, Scalar, Shapes, Starts

__all__ = ["ms_deform_attn"]


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
    """As `msdeform.ms_deform_attn`, by nothing but indexing and arithmetic, in float32 or better."""
    torch = sys.modules.get("torch")
    library = torch if torch is not None and isinstance(value, torch.Tensor) else np
    shapes, starts = plain_shapes(spatial_shapes), plain_starts(level_start_index)
    counts = shared_points(sampling_locations.shape, points, len(shapes))
    levels = flatten(shapes, starts, counts)
    batch, pixels, heads, channels = value.shape
    if starts is None:
        check_pixels(levels, pixels)
    queries, wide = sampling_locations.shape[1], library.promote_types(value.dtype, library.float32)
    locations = _convert(sampling_locations, wide).reshape(batch, queries, heads, -1, 2)
    weights = _convert(attention_weights, wide).reshape(batch, queries, heads, -1)
    # What has no place contributes nothing: -1 is outside of every level.
    locations = library.where(library.isfinite(locations), locations, -1.0)
    wide_value = _convert(value, wide)
    output: Any = 0
    first = 0
    for height, width, start, count in zip(levels[::4], levels[1::4], levels[2::4], levels[3::4], strict=True):
        samples = slice(first, first + count)
        image = wide_value[:, start : start + height * width]
        sampled = _bilinear(library, image, height, width, locations[:, :, :, samples])
        output = output + (weights[:, :, :, samples, None] * sampled).sum(3)
        first += count
    return _convert(output.reshape(batch, queries, heads * channels), value.dtype)


def _convert(array: Any, dtype: Any) -> Any:
    return array.astype(dtype) if isinstance(array, np.ndarray) else array.to(dtype)


def _bilinear(library: Any, image: Any, height: int, width: int, locations: Any) -> Any:
    """The image `[N, H * W, M, D]` at `[N, Lq, M, P, 2]`, zero outside: `[N, Lq, M, P, D]`.

    The centre of pixel (0, 0) is at (0.5, 0.5) pixels: `align_corners=False`.
    """
    x, y = locations[..., 0] * width - 0.5, locations[..., 1] * height - 0.5
    left, top = library.floor(x), library.floor(y)
    place = {} if library is np else {"device": image.device}
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
