"""The PyTorch operator `torch.ops.msdeform.ms_deform_attn` and its gradient, with all that PyTorch asks of one.

`_schema` says what it takes; native kernels compute it where PyTorch has the interface for that, and those of
`_kernels` where it has not; `_autograd`, `_second_derivative` and `_vmap` are its derivatives and its batches.
Kernels repeat the default values of the schema: the dispatcher leaves out arguments that equal them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _autograd, _kernels, _native, _offset_operator, _vmap, reference
from . import _recorded as _recorded  # For what it hands to the native half.
from ._levels import check_pixels, flatten, shared_points
from ._schema import BACKWARD, FORWARD, LIBRARY
from ._second_derivative import differentiable_again

__all__ = ["BACKWARD", "FORWARD", "call", "read_integers", "sampling_tensors"]

_forward, _forward_read = FORWARD.default, FORWARD.tensor_levels
_backward, _backward_read = BACKWARD.default, BACKWARD.tensor_levels


# Levels given as tensors -----------------------------------------------------------------------------------


def read_integers(name: str, tensor: Tensor) -> Any:
    """The numbers in a small tensor; waits for the GPU if it is there."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise TypeError(f"`{name}` is {tensor.dtype}; expected integers")
    while torch._C._functorch.is_gradtrackingtensor(tensor):  # A transform's, which may not be read itself.
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if tensor.numel() > 0 and (tensor.is_meta or tensor.untyped_storage().nbytes() == 0):
        raise ValueError(f"`{name}` has no numbers in it: it is on the device `meta`, or its storage was freed")
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"`{name}` is on the GPU and a CUDA graph is being captured: reading it would have to wait for the "
            f"GPU, which a capture cannot. Pass `{name}` as a list or as a CPU tensor"
        )
    try:
        return tensor.tolist()
    except RuntimeError:
        # torch 2.4 takes a tensor for one of a transform's own because there is a transform.
        if not torch._C._are_functorch_transforms_active():
            raise
        with torch._C._DisableFuncTorch():
            return tensor.tolist()


def _read_levels(
    spatial_shapes: Tensor,
    level_start_index: Tensor | None,
    points: list[int] | None,
    value: Tensor,
    locations: Tensor,
) -> list[int]:
    shapes = read_integers("spatial_shapes", spatial_shapes)
    starts = None if level_start_index is None else read_integers("level_start_index", level_start_index)
    levels = flatten(shapes, starts, shared_points(locations.shape, points, len(shapes)))
    if starts is None and value.dim() == 4:
        check_pixels(levels, value.shape[1])
    return levels


def _forward_reading(
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor | None,
    points: list[int] | None,
    deterministic: bool = False,
) -> Tensor:
    levels = _read_levels(spatial_shapes, level_start_index, points, value, locations)
    result: Tensor = _forward(value, locations, weights, levels, deterministic)
    return result


def _backward_reading(
    grad_output: Tensor,
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor | None,
    points: list[int] | None,
    wanted: list[bool],
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    levels = _read_levels(spatial_shapes, level_start_index, points, value, locations)
    result: tuple[Tensor, Tensor, Tensor] = _backward(
        grad_output, value, locations, weights, levels, wanted, deterministic
    )
    return result


# The operator by the reference, for second derivatives and forward mode ---------------------------------------


def _composed(value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], *_: Any) -> Tensor:
    result: Tensor = reference.attend(value, locations, weights, levels)
    return result


def _composed_reading(
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor | None,
    points: list[int] | None,
    *_: Any,
) -> Tensor:
    levels = _read_levels(spatial_shapes, level_start_index, points, value, locations)
    return _composed(value, locations, weights, levels)


# Shapes without contents ------------------------------------------------------------------------------------


def _forward_fake(value: Tensor, locations: Tensor, weights: Tensor, *_: Any) -> Tensor:
    torch._check(value.dim() == 4, lambda: f"`value` has {value.dim()} axes, expected [N, S, M, D]")
    torch._check(
        locations.dim() in (5, 6),
        lambda: f"`sampling_locations` has {locations.dim()} axes, expected [N, Lq, M, L, P, 2]",
    )
    torch._check(
        weights.dim() in (4, 5),
        lambda: f"`attention_weights` has {weights.dim()} axes, expected [N, Lq, M, L, P]",
    )
    if not value.device == locations.device == weights.device:
        _kernels.check_devices(value=value, sampling_locations=locations, attention_weights=weights)
    batch, _pixels, heads, channels = value.shape
    return value.new_empty((batch, locations.shape[1], heads * channels))


def _backward_fake(
    grad_output: Tensor, value: Tensor, locations: Tensor, weights: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    # `wanted` is the only list of booleans; what follows it may have been left out.
    wanted = next(item for item in reversed(rest) if isinstance(item, (list, tuple)))

    def empty(tensor: Tensor, is_wanted: bool) -> Tensor:
        return tensor.new_empty(tensor.shape if is_wanted else (0,))

    return empty(value, wanted[0]), empty(locations, wanted[1]), empty(weights, wanted[2])


# Calls from Python ---------------------------------------------------------------------------------------------


def call(value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool) -> Tensor:
    """The operator, past the keys of autocast and autograd: their kernels decide nothing that is not decided here."""
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        result: Tensor = _forward(value, locations, weights, levels, deterministic)
        return result
    if torch.is_autocast_enabled("cuda" if value.is_cuda else "cpu"):
        value, locations, weights = _autocast_tensors(value, locations, weights)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return _autograd.recorded(value, locations, weights, levels, deterministic)
    return _autograd.recorded(value, locations, weights, levels, deterministic)


# Autocast ---------------------------------------------------------------------------------------------------

_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def _autocast_tensors(value: Tensor, locations: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values go to the autocast format, as in every attention and matrix product of PyTorch. Locations
    and weights stay as they are: half precision cannot hold a coordinate, and the kernels read floats beside
    half precision values without a copy."""
    if value.dtype in (torch.float32, torch.float16, torch.bfloat16):
        value = value.to(torch.get_autocast_dtype(value.device.type))
        locations, weights = sampling_tensors(value, locations, weights)
    return value, locations, weights


def _autocast(overload: Any) -> Any:
    def kernel(value: Tensor, locations: Tensor, weights: Tensor, *rest: Any) -> Tensor:
        value, locations, weights = _autocast_tensors(value, locations, weights)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            result: Tensor = overload(value, locations, weights, *rest)
        return result

    return kernel


def sampling_tensors(value: Tensor, locations: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Locations and weights in one format, their own if a kernel reads it beside these values."""
    found = locations.dtype
    if found is weights.dtype and (found is torch.float32 or found is value.dtype):
        return locations, weights
    if not (found.is_floating_point and weights.dtype.is_floating_point):
        return locations, weights  # Integers: the kernels say which tensor is wrong.
    if torch.float64 in (found, weights.dtype):
        return locations.double(), weights.double()
    return locations.float(), weights.float()


# Registration -----------------------------------------------------------------------------------------------


def _register() -> None:
    # Kernels that PyTorch calls without Python, from version 2.10 on, by dispatch key and name.
    native = _native.register_kernels()

    def implement(overload: Any, kernel: Any, *keys: str) -> None:
        name = overload._schema.name.removeprefix("msdeform::")
        if overload._schema.overload_name:
            name += "." + overload._schema.overload_name
        for key in keys:
            if (key, name) not in native:
                LIBRARY.impl(name, kernel, key)

    implement(_forward, _kernels.forward_cpu, "CPU")
    implement(_forward, _kernels.forward_cuda, "CUDA")
    implement(_backward, _kernels.backward_cpu, "CPU")
    implement(_backward, _kernels.backward_cuda, "CUDA")
    implement(_forward_read, _forward_reading, "CPU", "CUDA")
    implement(_backward_read, _backward_reading, "CPU", "CUDA")
    for forward, backward, function, composed in (
        (_forward, _backward, _autograd.Attend, _composed),
        (_forward_read, _backward_read, _autograd.AttendReading, _composed_reading),
    ):
        implement(forward, _autograd.differentiable(forward, function, composed), "Autograd")
        implement(backward, differentiable_again(backward, composed), "Autograd")
    for overload in (_forward, _forward_read):
        implement(overload, _autocast(overload), "AutocastCPU", "AutocastCUDA")
        torch.library.register_fake(overload, _forward_fake, lib=LIBRARY)
        if hasattr(torch.library, "register_vmap"):  # torch 2.5
            torch.library.register_vmap(overload, _vmap.mapped_forward, lib=LIBRARY)
    for overload in (_backward, _backward_read):
        implement(overload, _vmap.old_mapped_backward, "Batched")
        torch.library.register_fake(overload, _backward_fake, lib=LIBRARY)
        if hasattr(torch.library, "register_vmap"):
            torch.library.register_vmap(overload, _vmap.mapped_backward, lib=LIBRARY)
    _offset_operator.register(native)


_register()
