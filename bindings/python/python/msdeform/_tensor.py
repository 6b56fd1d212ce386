"""Turns the arguments of users into the arguments of the operator."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import operator
from ._autograd import ordinary
from ._levels import check_pixels, end_of, flatten, plain_shapes, plain_starts, shared_points
from ._operators import PLAIN
from ._tracing import is_traced


def attend(
    value: Tensor,
    spatial_shapes: Any,
    level_start_index: Any,
    locations: Tensor,
    weights: Tensor,
    points: int | Sequence[int] | None,
    deterministic: bool,
) -> Tensor:
    """The operator on tensors, with the arguments of `msdeform.ms_deform_attn`."""
    tensors: tuple[Any, ...] = (value, locations, weights)
    if (
        level_start_index is None
        and points is None
        and not (torch.compiler.is_compiling() or autocast_enabled() or forward_ad._current_level >= 0)
    ):
        # Most calls: levels that follow each other.
        output = ordinary(PLAIN.numbers, tensors, spatial_shapes, True, (), deterministic)
        if output is not None:
            return output
    if not (isinstance(locations, torch.Tensor) and isinstance(weights, torch.Tensor)):
        _refuse_other_types(value, locations, weights)
    if not (locations.dtype is weights.dtype is value.dtype):
        tensors = operator.sampling_tensors(tensors)
    traced = is_traced()
    levels, unread = resolve_levels(value, spatial_shapes, level_start_index, points, locations.shape, traced)
    if levels is None:
        result: Tensor = PLAIN.forms[1].forward(*tensors, *unread, deterministic)
        return result
    return operator.call(PLAIN, tensors, levels, (), deterministic)


def resolve_levels(
    value: Tensor,
    spatial_shapes: Any,
    level_start_index: Any,
    points: int | Sequence[int] | None,
    samples_shape: Sequence[int],
    traced: bool,
) -> tuple[list[int] | None, tuple[Any, ...]]:
    """The levels of a call as numbers. If the numbers are not known yet, the tensors and points to read them from."""
    spatial_shapes = shapes_of_tensors(spatial_shapes, traced)
    if isinstance(spatial_shapes, torch.Tensor):
        check_shape_tensor("spatial_shapes", spatial_shapes)
        if level_start_index is not None and not isinstance(level_start_index, torch.Tensor):
            level_start_index = torch.as_tensor(level_start_index)
        if traced or value.is_meta or _is_symbolic(spatial_shapes) or _is_symbolic(level_start_index):
            counts = shared_points(samples_shape, points, spatial_shapes.shape[0])
            given = None
            if points is not None:
                given = [counts] * spatial_shapes.shape[0] if isinstance(counts, int) else counts
            return None, (spatial_shapes, level_start_index, given)
        shapes = _remembered("spatial_shapes", spatial_shapes)
        starts = None if level_start_index is None else _remembered("level_start_index", level_start_index)
    else:
        shapes, starts = spatial_shapes, level_start_index
        if isinstance(starts, torch.Tensor):
            check_shape_tensor("level_start_index", starts)
            # Not read on a GPU or in a trace, as the docstring of `ms_deform_attn` promises.
            is_here = starts.device.type == "cpu" and not traced
            starts = _remembered("level_start_index", starts) if is_here and not _is_symbolic(starts) else None
        if not isinstance(shapes, (list, tuple)):
            shapes = plain_shapes(shapes)
        if starts is not None and not isinstance(starts, (list, tuple)):
            starts = plain_starts(starts)
    counts = shared_points(samples_shape, points, len(shapes))
    if isinstance(counts, torch.Tensor):
        counts = int(counts)  # `torch.jit.trace` again; the number of points is part of the model.
    levels = flatten(shapes, starts, counts)
    shape = value.shape
    if starts is None and len(shape) == 4 and (traced or end_of(levels) != shape[1]):
        _check_pixels(levels, shape[1], traced)
    return levels, ()


def _check_pixels(levels: list[int], pixels: int, traced: bool) -> None:
    """Checks that levels without starts cover all pixels of the value. A trace may check this when it runs."""
    if not traced:
        check_pixels(levels, pixels)
    elif not torch.compiler.is_compiling():
        with warnings.catch_warnings():  # `torch.jit.trace` makes sizes tensors, and warns when one is read.
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            check_pixels(levels, int(pixels))
    else:
        _check_in_graph(end_of(levels) == pixels)


# Whether the compiler accepts a message for `torch._check`.
_TAKES_WORDS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def _check_in_graph(holds: Any) -> None:
    """Checks when the graph is made, or when it runs if sizes are only known then."""
    if _TAKES_WORDS:
        # No numbers in the message, because the compiler accepts only constant messages.
        torch._check(
            holds,
            lambda: (
                "the number of pixels of `value` differs from that of the levels of `spatial_shapes`; values with gaps "
                "between levels need `level_start_index` as a list"
            ),
        )
    else:
        # The compiler quotes the next line with its comment.
        torch._check(holds)  # `value` and levels differ in pixels; gaps need `level_start_index` as a list.


def shapes_of_tensors(spatial_shapes: Any, traced: bool) -> Any:
    """Turns a list with tensors, of pairs or of single numbers, into one tensor of all shapes.

    `torch.jit.trace` represents sizes as tensors; this keeps them variable. Outside of a trace only the first size is
    inspected: if it is a number, tensors among the other sizes are read as numbers.
    """
    if not (isinstance(spatial_shapes, (list, tuple)) and spatial_shapes):
        return spatial_shapes
    if not traced:
        first = spatial_shapes[0]
        if type(first) in (tuple, list) and first and type(first[0]) is int:
            return spatial_shapes
    if any(_holds_tensors(pair) for pair in spatial_shapes):
        pairs = [_as_tensor(pair) for pair in spatial_shapes]
        if any(pair.shape != (2,) for pair in pairs):
            raise ValueError(f"`spatial_shapes` must hold one (height, width) per level, found {spatial_shapes!r}")
        return torch.stack(pairs)
    return spatial_shapes


def _holds_tensors(pair: Any) -> bool:
    return isinstance(pair, torch.Tensor) or (
        isinstance(pair, (list, tuple)) and any(isinstance(size, torch.Tensor) for size in pair)
    )


def _as_tensor(pair: Any) -> Tensor:
    if isinstance(pair, torch.Tensor):
        return pair
    return torch.cat([torch.as_tensor(size).reshape(-1) for size in pair])


def _some_autocast_enabled() -> bool:
    return bool(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", _some_autocast_enabled)


def _refuse_other_types(value: Any, locations: Any, weights: Any) -> None:
    for name, given in (("sampling_locations", locations), ("attention_weights", weights)):
        if not hasattr(given, "requires_grad"):
            found = "None" if given is None else f"a {type(given).__module__}.{type(given).__name__}"
            raise TypeError(f"`{name}` must be a torch.Tensor like `value`, found {found}")


def check_shape_tensor(name: str, tensor: Tensor) -> None:
    """Refuses tensors of levels that hold no integers or have a wrong shape."""
    if tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"`{name}` is {tensor.dtype}; expected integers")
    expected = 2 if name == "spatial_shapes" else 1
    if tensor.dim() != expected or (expected == 2 and tensor.shape[1] != 2):
        form = "[levels, 2]" if expected == 2 else "[levels]"
        raise ValueError(f"`{name}` has shape {list(tensor.shape)}, expected {form}")


def _is_symbolic(tensor: Tensor | None) -> bool:
    """Whether a tensor may have no numbers to read, because it is fake or functional."""
    if tensor is None:
        return False
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


# Numbers of tensors that were read from a GPU, by identity. The weak reference shows whether an entry still belongs to
# the same tensor. Version and address show whether the tensor still has the same numbers.
_read: dict[int, tuple[weakref.ref[Any], int, int, Any]] = {}


def _remembered(name: str, tensor: Tensor) -> Any:
    """The numbers of a tensor. A tensor on a GPU is read again only if PyTorch reports a change.

    A read from a GPU waits for all queued work, so not every call does it. Host memory is read in every call. A write
    that PyTorch does not report (by `tensor.data`, another library or the replay of a graph) stays unnoticed, because
    noticing it would need the same wait.
    """
    check_shape_tensor(name, tensor)
    # A tensor made under `inference_mode` has no version, so a change to it would go unnoticed.
    if not tensor.is_cuda or tensor.is_inference():
        return operator.read_integers(name, tensor)
    identity, version, address = id(tensor), tensor._version, tensor.data_ptr()
    entry = _read.get(identity)
    if entry is not None and entry[0]() is tensor and entry[1] == version and entry[2] == address:
        return entry[3]
    numbers = operator.read_integers(name, tensor)

    def forget(_: Any) -> None:
        _read.pop(identity, None)

    _read[identity] = (weakref.ref(tensor, forget), version, address, numbers)
    return numbers
