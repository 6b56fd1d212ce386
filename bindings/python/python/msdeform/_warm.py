"""Compiles the kernels of a model before its first step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import _native

# The names that layers have for these numbers.
_HEADS = ("n_heads", "num_heads")
_LEVELS = ("n_levels", "num_levels")
_POINTS = ("num_points_list", "n_points_list", "n_points", "num_points")
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# The kinds of references, by their names in workloads.
_POINTS_PER_LEVEL, _BOXES_PER_LEVEL, _ONE_BOX = "point_per_level", "box_per_level", "box"
# In an encoder every pixel is a query, whose reference is the pixel's own position.
_ENCODER, _DECODER = (_POINTS_PER_LEVEL,), (_POINTS_PER_LEVEL, _BOXES_PER_LEVEL)


class Shape(NamedTuple):
    """The sizes that kernels are compiled for: heads, channels of a head, points of every level.

    Without references the shape is for `ms_deform_attn`. With references it is for `ms_deform_attn_from_offsets`.
    `encoder` has the kinds of references of an encoder, in which every pixel is a query. `decoder` has those of a
    decoder. A kind is `"point_per_level"`, `"box_per_level"`, `"box"` (one for all levels), or `{"anchors": 4}`.
    """

    heads: int
    channels: int
    points: Sequence[int]
    encoder: Sequence[Any] = ()
    decoder: Sequence[Any] = ()


def warm_up(
    model_or_shapes: Any,
    dtypes: Iterable[Any] = ("f32", "f16", "bf16"),
    *,
    device: Any = None,
    backward: bool = True,
    deterministic: bool = False,
    arch: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Compiles the kernels of a model's attention for images of any size.

    The first steps of the model then do not wait for the compiler.

    Args:
        model_or_shapes: a `torch.nn.Module` with attention layers, a `Shape`, or several shapes as
            `(heads, channels, points)`. Add `encoder` and `decoder` references for the fused operator. Call `patch()`
            before, because replaced layers need other kernels.
        dtypes: dtypes of the values, as names or PyTorch's dtypes. Kernels for mixed precision, with locations in
            float32, are included.
        device: the GPU, as PyTorch names it; by default the first GPU.
        backward: whether to compile the kernels of gradients.
        deterministic: compiles the gradients of `torch.use_deterministic_algorithms(True)` instead of the fast ones.
        arch: compiles for an architecture, such as `"sm_90"`, instead of a GPU of this machine.
        threads: number of kernels compiled at the same time; by default the number of cores.

    Returns:
        A summary: the number of `kernels`, how many were `compiled` and `found`, those that `failed`, their `bytes`,
        the `seconds` that it took, `arch`, `gpu`, `nvrtc` and the folder of the `cache`.

    Raises:
        ValueError: there is nothing to compile, because the model has no attention or a size is wrong.
        Unavailable: there is no GPU and no `arch`, or no NVRTC.
    """
    shapes = [_plain(shape) for shape in _shapes(model_or_shapes)]
    modes = (["deterministic"] if deterministic else ["fast"]) if backward else []
    place = (_ordinal(device), arch)
    names = [_name(dtype) for dtype in dtypes]
    if not names:
        raise ValueError("`dtypes` is empty; expected at least one of f32, f16, bf16")
    if threads is not None and threads < 1:
        raise ValueError(f"`threads` is {threads}; expected 1 or more")
    try:
        summary: dict[str, Any] = json.loads(
            _native.warm_up_json(list(dict.fromkeys(shapes)), names, modes, place, threads, _say)
        )
    finally:
        show_progress("")
    return summary


def _shapes(given: Any) -> list[Shape]:
    if isinstance(given, Shape):
        return [given]
    modules = getattr(given, "named_modules", None)
    if callable(modules):
        found = [shape for shape in (_of_layer(path, layer) for path, layer in modules()) if shape is not None]
        if not found:
            raise ValueError(f"no deformable attention in this {type(given).__name__}; pass `msdeform.Shape`s instead")
        return found
    return [Shape(*shape) for shape in given]


def _of_layer(path: str, layer: Any) -> Shape | None:
    """The shape of a layer, or `None` if its numbers and projection sizes are not those of an attention layer."""
    offsets = getattr(layer, "sampling_offsets", None)
    heads, levels, points = (_first(layer, names) for names in (_HEADS, _LEVELS, _POINTS))
    if not isinstance(heads, int) or heads < 1 or not isinstance(levels, int) or points is None:
        return None
    per_level = tuple(points) if isinstance(points, (list, tuple)) else (points,) * levels
    if getattr(offsets, "out_features", None) != 2 * heads * sum(per_level):
        return None
    shape = Shape(heads, getattr(offsets, "in_features", 0) // heads, per_level)
    references = _references(layer, levels)
    if references is None:
        return shape
    # The path of the layer shows which part it belongs to: `decoder.layers.0.encoder_attn` is part of a decoder.
    inside = [part for part in path.split(".") if part in ("encoder", "decoder")][-1:]
    return shape._replace(
        encoder=() if inside == ["decoder"] else _ENCODER, decoder=() if inside == ["encoder"] else references
    )


def _references(layer: Any, levels: int) -> tuple[str, ...] | None:
    """The references of a decoder with this layer; `None` if the layer calls the plain operator."""
    # Imported here, because this module must work without PyTorch.
    from .module import MSDeformAttn
    from .patching import replacing

    if isinstance(layer, MSDeformAttn):
        return _DECODER
    known = replacing.fused_layer(layer)
    if known is None:
        return None
    # With one level, one box for all levels is the same as one box per level.
    return (_ONE_BOX,) if levels > 1 and type(layer).__name__.startswith(known.one_box) else _DECODER


def _first(layer: Any, names: tuple[str, ...]) -> Any:
    return next((value for value in (getattr(layer, name, None) for name in names) if value is not None), None)


def _plain(shape: Shape) -> Any:
    """A shape as the native half reads it."""
    numbers = (shape.heads, shape.channels, *shape.points)
    if not shape.points or any(not isinstance(number, int) or number < 1 for number in numbers):
        raise ValueError(f"found the shape {shape}; expected positive numbers: heads, channels, points of every level")
    references = (tuple(json.dumps(each, default=repr) for each in of) for of in (shape.encoder, shape.decoder))
    return shape.heads, shape.channels, tuple(shape.points), *references


def _name(dtype: Any) -> str:
    text = str(dtype).removeprefix("torch.")
    return _DTYPES.get(text, text)


def _ordinal(device: Any) -> int:
    if device is None or isinstance(device, int):
        return device or 0
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise ValueError(f"`device` is {device}; expected a GPU, such as cuda:0")
    return int(number or 0)


def _say(done: int, of: int) -> None:
    show_progress(f"compiling kernels: {done} of {of}")


def show_progress(text: str) -> None:
    """Prints a line that the next line replaces. Prints nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
