"""The PyTorch operator `torch.ops.msdeform.ms_deform_attn` and its gradient.

Two overloads each: `default` takes the levels as a list of integers, four for each level (height, width,
start, points); `tensor_levels` takes them as tensors and reads these when it runs, for graphs in which
nobody knows the numbers.

Defined by `torch.library.Library` and not by the decorator `custom_op`, which took 17 us a call in a trial against 5.
Kernels repeat the default values of the schema: the dispatcher leaves out arguments that equal them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _kernels, _native
from ._levels import check_pixels, flatten, shared_points

__all__ = ["BACKWARD", "FORWARD", "call", "read_integers", "sampling_tensors"]

_LIBRARY = torch.library.Library("msdeform", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
# Reading a tensor on the GPU waits for it, which a captured graph cannot. Newer versions of the compiler
# split the graph there when told.
_CUDAGRAPH_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
_READING_TAGS = _TAGS if _CUDAGRAPH_UNSAFE is None else (*_TAGS, _CUDAGRAPH_UNSAFE)

_TENSORS = "Tensor value, Tensor sampling_locations, Tensor attention_weights"
_NUMBERS = "SymInt[] levels"
_READ = "Tensor spatial_shapes, Tensor? level_start_index, SymInt[]? points"
_LIBRARY.define(f"ms_deform_attn({_TENSORS}, {_NUMBERS}, bool deterministic=False) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"ms_deform_attn.tensor_levels({_TENSORS}, {_READ}, bool deterministic=False) -> Tensor",
    tags=_READING_TAGS,
)
_GRADIENTS = "bool[3] wanted, bool deterministic=False) -> (Tensor, Tensor, Tensor)"
_LIBRARY.define(f"ms_deform_attn_backward(Tensor grad_output, {_TENSORS}, {_NUMBERS}, {_GRADIENTS}", tags=_TAGS)
_LIBRARY.define(
    f"ms_deform_attn_backward.tensor_levels(Tensor grad_output, {_TENSORS}, {_READ}, {_GRADIENTS}",
    tags=_READING_TAGS,
)

FORWARD = torch.ops.msdeform.ms_deform_attn
BACKWARD = torch.ops.msdeform.ms_deform_attn_backward
_forward, _forward_read = FORWARD.default, FORWARD.tensor_levels
_backward, _backward_read = BACKWARD.default, BACKWARD.tensor_levels


# Levels given as tensors -----------------------------------------------------------------------------------


def read_integers(name: str, tensor: Tensor) -> Any:
    """The numbers in a small tensor; waits for the GPU if it is there."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise TypeError(f"`{name}` is {tensor.dtype}; expected integers")
    if tensor.numel() > 0 and (tensor.is_meta or tensor.untyped_storage().nbytes() == 0):
        raise ValueError(f"`{name}` has no numbers in it: it is on the device `meta`, or its storage was freed")
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"`{name}` is on the GPU and a CUDA graph is being captured: reading it would have to wait for the "
            f"GPU, which a capture cannot. Pass `{name}` as a list or as a CPU tensor"
        )
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


# Ordinary calls ----------------------------------------------------------------------------------------------

# Nothing in PyTorch wants to see a call if none of these returns something true: no mode, trace, profiler, transform.
# Autocast has had its turn before.
_WATCHERS: tuple[Any, ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._get_tracing_state,
    torch._C._autograd._profiler_enabled,
    torch._C._are_functorch_transforms_active,
)
# Ordinary calls then happen in the native half alone, where this version of PyTorch has what that takes (2.10).
_native.use_torch(
    Tensor,
    list(_WATCHERS),
    torch.get_num_threads,
    torch.uint8,
    _kernels.quick_empty(),
    list(_kernels.DTYPES),
)


def _is_ordinary(value: Tensor, locations: Tensor, weights: Tensor) -> bool:
    """Whether the dispatcher would go straight to the kernel of the processor or the GPU."""
    return (
        type(value) is type(locations) is type(weights) is Tensor
        and (value.is_cpu or value.is_cuda)
        and not any(watcher() for watcher in _WATCHERS)
        and not (value.is_neg() or locations.is_neg() or weights.is_neg())
    )


def _below_autograd(
    value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool
) -> Tensor:
    """The output without its gradient. An ordinary call leaves the dispatcher out: a kernel in Python takes it about
    as long as all the rest of the call."""
    result: Tensor | None = _native.torch_forward(value, locations, weights, levels)
    if result is not None:
        return result
    if _is_ordinary(value, locations, weights):
        kernel = _kernels.forward_cuda if value.is_cuda else _kernels.forward_cpu
        return kernel(value, locations, weights, levels, deterministic)
    with torch._C._AutoDispatchBelowAutograd():
        result = _forward(value, locations, weights, levels, deterministic)
    return result


def _gradients(
    grad_output: Tensor,
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
    levels: list[int],
    wanted: tuple[bool, bool, bool],
    deterministic: bool,
) -> Sequence[Tensor | None]:
    """The gradients, likewise. Recorded by autograd only for the sake of the error that a second derivative is."""
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        same_bits = deterministic or torch.are_deterministic_algorithms_enabled()
        found: Sequence[Tensor | None] | None = _native.torch_backward(
            grad_output, value, locations, weights, levels, wanted, same_bits
        )
        if found is not None:
            return found
        if _is_ordinary(value, locations, weights) and type(grad_output) is Tensor and not grad_output.is_neg():
            kernel = _kernels.backward_cuda if value.is_cuda else _kernels.backward_cpu
            return kernel(grad_output, value, locations, weights, levels, list(wanted), deterministic)
    result: tuple[Tensor, Tensor, Tensor] = _backward(
        grad_output, value, locations, weights, levels, list(wanted), deterministic
    )
    return result


# Gradients --------------------------------------------------------------------------------------------------


class _Attend(torch.autograd.Function):
    """Forward and backward with the levels as numbers."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool = False
    ) -> Tensor:
        ctx.save_for_backward(value, locations, weights)
        ctx.levels, ctx.deterministic = levels, deterministic
        return _below_autograd(value, locations, weights, levels, deterministic)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:3]
        value, locations, weights = ctx.saved_tensors
        found = _gradients(grad_output, value, locations, weights, ctx.levels, wanted, ctx.deterministic)
        value, locations, weights = (
            gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True)
        )
        return value, locations, weights, None, None


class _AttendReading(torch.autograd.Function):
    """Forward and backward with the levels in tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        locations: Tensor,
        weights: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor | None,
        points: list[int] | None,
        deterministic: bool = False,
    ) -> Tensor:
        ctx.save_for_backward(value, locations, weights, spatial_shapes, level_start_index)
        ctx.points, ctx.deterministic = points, deterministic
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = _forward_read(
                value, locations, weights, spatial_shapes, level_start_index, points, deterministic
            )
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:3]
        found = _backward_read(grad_output, *ctx.saved_tensors, ctx.points, list(wanted), ctx.deterministic)
        value, locations, weights = (
            gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted, strict=True)
        )
        return value, locations, weights, None, None, None, None


class _Gradients(torch.autograd.Function):
    """The gradient, whose own gradient does not exist."""

    @staticmethod
    def forward(ctx: Any, overload: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "ms_deform_attn has no second derivative: its gradient cannot be differentiated again. Leave out "
            "`create_graph=True`, or compute this term without it"
        )


def _refuse_tangents(*tensors: Tensor) -> None:
    """Forward-mode derivatives: without this they would come out as zero."""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "ms_deform_attn has no forward-mode derivative (jvp, jacfwd); use the reverse mode: `backward()` or "
            "`torch.autograd.grad`"
        )


def _differentiable(overload: Any, function: type[torch.autograd.Function]) -> Any:
    def kernel(value: Tensor, locations: Tensor, weights: Tensor, *rest: Any) -> Tensor:
        if forward_ad._current_level >= 0:
            _refuse_tangents(value, locations, weights)
        if torch.is_grad_enabled() and (value.requires_grad or locations.requires_grad or weights.requires_grad):
            if torch._C._are_functorch_transforms_active():
                raise NotImplementedError(
                    "ms_deform_attn has no gradient inside of torch.func transforms (grad, vjp, jacrev); use "
                    "`backward()` or `torch.autograd.grad`"
                )
            result: Tensor = function.apply(value, locations, weights, *rest)
            return result
        with torch._C._AutoDispatchBelowAutograd():
            result = overload(value, locations, weights, *rest)
        return result

    return kernel


def call(value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool) -> Tensor:
    """The operator, past the keys of autocast and autograd: their kernels decide nothing that is not decided here."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        result: Tensor = _forward(value, locations, weights, levels, deterministic)
        return result
    if forward_ad._current_level >= 0:
        _refuse_tangents(value, locations, weights)
    if torch.is_autocast_enabled("cuda" if value.is_cuda else "cpu"):
        value, locations, weights = _autocast_tensors(value, locations, weights)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return _recorded(value, locations, weights, levels, deterministic)
    return _recorded(value, locations, weights, levels, deterministic)


def _recorded(value: Tensor, locations: Tensor, weights: Tensor, levels: list[int], deterministic: bool) -> Tensor:
    if torch.is_grad_enabled() and (value.requires_grad or locations.requires_grad or weights.requires_grad):
        result: Tensor = _Attend.apply(value, locations, weights, levels, deterministic)
        return result
    return _below_autograd(value, locations, weights, levels, deterministic)


def _differentiable_once(overload: Any) -> Any:
    def kernel(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(item, Tensor) and item.requires_grad for item in arguments):
            return _Gradients.apply(overload, *arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*arguments)

    return kernel


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


# vmap -------------------------------------------------------------------------------------------------------


def _mapped(info: Any, in_dims: Any, value: Tensor, locations: Tensor, weights: Tensor, *rest: Any) -> Any:
    """One more batch axis is the batch itself, longer."""
    if any(dim is not None for dim in torch.utils._pytree.tree_leaves(in_dims[3:])):
        raise NotImplementedError(
            "vmap over `spatial_shapes` or `level_start_index` has no meaning: one call has one list of levels"
        )

    def fold(tensor: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            tensor = tensor.unsqueeze(0).expand(info.batch_size, *tensor.shape)
        else:
            tensor = tensor.movedim(dim, 0)
        return tensor.reshape(info.batch_size * tensor.shape[1], *tensor.shape[2:])

    folded = [fold(tensor, dim) for tensor, dim in zip((value, locations, weights), in_dims[:3], strict=True)]
    overload = _forward if isinstance(rest[0], (list, tuple)) else _forward_read
    output = overload(*folded, *rest)
    return output.unflatten(0, (info.batch_size, -1)), 0


# Registration -----------------------------------------------------------------------------------------------


def _register() -> None:
    def implement(overload: Any, kernel: Any, *keys: str) -> None:
        name = overload._schema.name.removeprefix("msdeform::")
        if overload._schema.overload_name:
            name += "." + overload._schema.overload_name
        for key in keys:
            _LIBRARY.impl(name, kernel, key)

    implement(_forward, _kernels.forward_cpu, "CPU")
    implement(_forward, _kernels.forward_cuda, "CUDA")
    implement(_backward, _kernels.backward_cpu, "CPU")
    implement(_backward, _kernels.backward_cuda, "CUDA")
    implement(_forward_read, _forward_reading, "CPU", "CUDA")
    implement(_backward_read, _backward_reading, "CPU", "CUDA")
    implement(_forward, _differentiable(_forward, _Attend), "Autograd")
    implement(_forward_read, _differentiable(_forward_read, _AttendReading), "Autograd")
    implement(_backward, _differentiable_once(_backward), "Autograd")
    implement(_backward_read, _differentiable_once(_backward_read), "Autograd")
    for overload in (_forward, _forward_read):
        implement(overload, _autocast(overload), "AutocastCPU", "AutocastCUDA")
        torch.library.register_fake(overload, _forward_fake, lib=_LIBRARY)
        if hasattr(torch.library, "register_vmap"):  # torch 2.5
            torch.library.register_vmap(overload, _mapped, lib=_LIBRARY)
    for overload in (_backward, _backward_read):
        torch.library.register_fake(overload, _backward_fake, lib=_LIBRARY)


_register()
