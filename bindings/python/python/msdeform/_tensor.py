"""From the arguments that users pass to those of the operator."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _native, operator
from ._levels import flatten, plain_shapes, plain_starts, shared_points


def attend(
    value: Tensor,
    spatial_shapes: Any,
    level_start_index: Any,
    locations: Tensor,
    weights: Tensor,
    points: Sequence[int] | None,
    deterministic: bool,
) -> Tensor:
    """The operator on tensors; arguments as of `msdeform.ms_deform_attn`."""
    if (
        level_start_index is None
        and points is None
        and not (
            torch.compiler.is_compiling()
            or torch.is_grad_enabled()
            or _autocast_enabled()
            or forward_ad._current_level >= 0
        )
    ):
        # Most calls of inference: levels that follow each other, nothing to record.
        output: Tensor | None = _native.torch_forward(value, locations, weights, spatial_shapes)
        if output is not None:
            return output
    if not (isinstance(locations, torch.Tensor) and isinstance(weights, torch.Tensor)):
        _refuse_other_types(value, locations, weights)
    if not (locations.dtype is weights.dtype is value.dtype):
        locations, weights = operator.sampling_tensors(value, locations, weights)
    traced = is_traced()
    if traced:
        spatial_shapes = traced_shapes(spatial_shapes)
    result: Tensor
    if isinstance(spatial_shapes, torch.Tensor):
        _check_shape_tensor("spatial_shapes", spatial_shapes)
        if level_start_index is not None and not isinstance(level_start_index, torch.Tensor):
            level_start_index = torch.as_tensor(level_start_index)
        if traced or value.is_meta or _is_symbolic(spatial_shapes) or _is_symbolic(level_start_index):
            if points is None:
                shared_points(locations.shape, None)
            given = None if points is None else list(points)
            result = operator.FORWARD.tensor_levels(
                value, locations, weights, spatial_shapes, level_start_index, given, deterministic
            )
            return result
        shapes = _remembered("spatial_shapes", spatial_shapes)
        starts = None if level_start_index is None else _remembered("level_start_index", level_start_index)
    else:
        shapes, starts = spatial_shapes, level_start_index
        if isinstance(starts, torch.Tensor):
            _check_shape_tensor("level_start_index", starts)
            # Not read from a GPU, or in a trace: see the documentation of the function.
            is_here = starts.device.type == "cpu" and not traced
            starts = _remembered("level_start_index", starts) if is_here and not _is_symbolic(starts) else None
        if not isinstance(shapes, (list, tuple)):
            shapes = plain_shapes(shapes)
        if starts is not None and not isinstance(starts, (list, tuple)):
            starts = plain_starts(starts)
    counts = shared_points(locations.shape, points)
    if isinstance(counts, torch.Tensor):
        counts = int(counts)  # `torch.jit.trace` again; how many points there are is part of the model.
    return operator.call(value, locations, weights, flatten(shapes, starts, counts), deterministic)


def is_traced() -> bool:
    """Whether the call becomes part of a graph, which other sizes may go through later."""
    return bool(torch.compiler.is_compiling() or torch._C._is_tracing())


def traced_shapes(spatial_shapes: Any) -> Any:
    """`torch.jit.trace` hands sizes of tensors out as tensors; they stay variable in a tensor of all shapes."""
    if torch.compiler.is_compiling() or not isinstance(spatial_shapes, (list, tuple)):
        return spatial_shapes
    sizes = [size for pair in spatial_shapes for size in pair] if _are_pairs(spatial_shapes) else []
    if not any(isinstance(size, torch.Tensor) for size in sizes):
        return spatial_shapes
    return torch.stack([torch.as_tensor(size) for size in sizes]).view(-1, 2)


def _are_pairs(spatial_shapes: Sequence[Any]) -> bool:
    return all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in spatial_shapes)


def _some_autocast_enabled() -> bool:
    return bool(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", _some_autocast_enabled)


def _refuse_other_types(value: Any, locations: Any, weights: Any) -> None:
    for name, given in (("sampling_locations", locations), ("attention_weights", weights)):
        if not hasattr(given, "requires_grad"):
            found = "nothing" if given is None else f"a {type(given).__module__}.{type(given).__name__}"
            raise TypeError(f"`{name}` must be a torch.Tensor like `value`, found {found}")


def _check_shape_tensor(name: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"`{name}` is {tensor.dtype}; expected integers")
    expected = 2 if name == "spatial_shapes" else 1
    if tensor.dim() != expected or (expected == 2 and tensor.shape[1] != 2):
        form = "[levels, 2]" if expected == 2 else "[levels]"
        raise ValueError(f"`{name}` has shape {list(tensor.shape)}, expected {form}")


def _is_symbolic(tensor: Tensor | None) -> bool:
    """Whether a tensor may have no numbers to read: fake, functional."""
    if tensor is None:
        return False
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


# Numbers of tensors that were read, by identity. A weak reference says whether an entry is still about the same
# tensor, its version whether the tensor still says the same.
_read: dict[int, tuple[weakref.ref[Any], int, Any]] = {}


def _remembered(name: str, tensor: Tensor) -> Any:
    if tensor.is_inference():
        return operator.read_integers(name, tensor)  # Without a version nobody can know whether it changed.
    identity, version = id(tensor), tensor._version
    entry = _read.get(identity)
    if entry is not None and entry[0]() is tensor and entry[1] == version:
        return entry[2]
    _check_shape_tensor(name, tensor)
    numbers = operator.read_integers(name, tensor)

    def forget(_: Any) -> None:
        _read.pop(identity, None)

    _read[identity] = (weakref.ref(tensor, forget), version, numbers)
    return numbers
