"""Compiling ahead: what a model needs, before its first step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import _native

# What layers call these numbers.
_HEADS = ("n_heads", "num_heads")
_LEVELS = ("n_levels", "num_levels")
_POINTS = ("num_points_list", "n_points_list", "n_points", "num_points")
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# What offsets start from, by the names that workloads have for it.
_POINTS_PER_LEVEL, _BOXES_PER_LEVEL, _ONE_BOX = "point_per_level", "box_per_level", "box"
# Every pixel of an encoder starts from its own place.
_ENCODER, _DECODER = (_POINTS_PER_LEVEL,), (_POINTS_PER_LEVEL, _BOXES_PER_LEVEL)


class Shape(NamedTuple):
    """What is compiled in: heads, channels of a head, points of every level.

    With references, `ms_deform_attn_from_offsets` is meant instead of `ms_deform_attn`: those of an encoder, in which
    every pixel asks, and those of a decoder. Each is `"point_per_level"`, `"box_per_level"`, `"box"` (one for all
    levels), or `{"anchors": 4}`.
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
        model_or_shapes: a `torch.nn.Module`, whose attention layers are looked up, or shapes: a `Shape`, or several as
            `(heads, channels, points)`, with references of `encoder` and `decoder` for calls from offsets.
            What is replaced is looked at as it is, so call `patch()` before.
        dtypes: formats of the values, by name or as PyTorch's. Locations in float32, as mixed precision has them, are
            included.
        device: the GPU, as PyTorch names it; the first one unless said.
        backward: whether gradients are computed too.
        deterministic: whether those of `torch.use_deterministic_algorithms(True)`, in place of the others.
        arch: an architecture, such as `"sm_90"`, instead of a GPU that is there.
        threads: kernels compiled side by side; all cores unless said.

    Returns:
        A summary: how many `kernels` there are, how many of them were `compiled` and `found`, what `failed`, their
        `bytes`, the `seconds` it took, `arch`, `gpu`, `nvrtc` and the `cache` they are in.

    Raises:
        ValueError: nothing to compile: no attention in the model, or sizes that make no sense.
        Unavailable: no GPU and no `arch`, or no compiler.
    """
    shapes = [_plain(shape) for shape in _shapes(model_or_shapes)]
    modes = (["deterministic"] if deterministic else ["fast"]) if backward else []
    place = (_ordinal(device), arch)
    names = [_name(dtype) for dtype in dtypes]
    if not names:
        raise ValueError("`dtypes` is empty; known: f32, f16, bf16")
    if threads is not None and threads < 1:
        raise ValueError(f"`threads` is {threads}; at least one is needed")
    try:
        summary: dict[str, Any] = json.loads(
            _native.warm_up_json(list(dict.fromkeys(shapes)), names, modes, place, threads, _say)
        )
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return summary


def _shapes(given: Any) -> list[Shape]:
    if isinstance(given, Shape):
        return [given]
    modules = getattr(given, "named_modules", None)
    if callable(modules):
        found = [shape for shape in (_of_layer(path, layer) for path, layer in modules()) if shape is not None]
        if not found:
            raise ValueError(f"no deformable attention in this {type(given).__name__}; give its shapes instead")
        return found
    return [Shape(*shape) for shape in given]


def _of_layer(path: str, layer: Any) -> Shape | None:
    """The shape of a layer, if its numbers and the sizes of its projection say that it is one."""
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
    # What asks is known by where the layer is: `decoder.layers.0.encoder_attn` is a decoder's.
    inside = [part for part in path.split(".") if part in ("encoder", "decoder")][-1:]
    return shape._replace(
        encoder=() if inside == ["decoder"] else _ENCODER, decoder=() if inside == ["encoder"] else references
    )


def _references(layer: Any, levels: int) -> tuple[str, ...] | None:
    """Those of a decoder with this layer; none where it calls the operator with given locations."""
    # A model is made of PyTorch; without it this module must do.
    from .module import MSDeformAttn
    from .patching import replacing

    if isinstance(layer, MSDeformAttn):
        return _DECODER
    known = replacing.fused_layer(layer)
    if known is None:
        return None
    # With one level one for all is one for each.
    return (_ONE_BOX,) if levels > 1 and type(layer).__name__.startswith(known.one_box) else _DECODER


def _first(layer: Any, names: tuple[str, ...]) -> Any:
    return next((value for value in (getattr(layer, name, None) for name in names) if value is not None), None)


def _plain(shape: Shape) -> Any:
    """A shape as the native half takes it."""
    numbers = (shape.heads, shape.channels, *shape.points)
    if not shape.points or any(not isinstance(number, int) or number < 1 for number in numbers):
        raise ValueError(f"{shape} is no shape; give positive numbers: heads, channels, points of every level")
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
        raise ValueError(f"`device` is {device}; kernels are compiled for GPUs, such as cuda:0")
    return int(number or 0)


def _say(done: int, of: int) -> None:
    """Prints a line that the next line replaces. Prints nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[Kcompiling kernels: {done} of {of}", end="", file=sys.stderr, flush=True)
