"""Turns a package's call into a call of the operator.

A parameter's role follows from its name. The layout of values, locations and weights follows from trials (see
`checking`). A call in a form that was not tried goes to the original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _native
from .._tensor import attend
from .._tracing import is_exported, is_kept_by_export, is_kept_by_trace, plain_number
from . import data
from .reporting import warn

# The role of a parameter, by its name.
_ROLES = data.roles(
    value="value",
    shapes="value_spatial_shapes spatial_shapes",
    # The same as plain numbers, which cost no synchronisation. Models that have them lay out their levels one after
    # the other, so that the starts are not needed either.
    sizes="value_spatial_shapes_list value_spatial_shapes_hw",
    starts="value_level_start_index level_start_index",
    locations="sampling_locations",
    weights="attention_weights",
    points="num_points_list",
)
# Parameters that select another operation unless they have this value.
_EXPECTED: dict[str, Any] = {"method": "default", "value_shape": "default", "allow_acceleration": True}

# Whether values are a list of levels, and the axes of locations and of weights.
Form = tuple[bool, int, int]


@dataclass(frozen=True)
class Signature:
    """The roles of a function's parameters."""

    parameters: tuple[str, ...]

    def position(self, role: str) -> int | None:
        """The position of the parameter with a role."""
        return next((at for at, name in enumerate(self.parameters) if _ROLES.get(name) == role), None)

    @property
    def expected(self) -> tuple[tuple[int, Any], ...]:
        """Positions of the parameters that must have a certain value, with that value."""
        return tuple((at, _EXPECTED[name]) for at, name in enumerate(self.parameters) if name in _EXPECTED)

    def arguments(self, **by_role: Any) -> tuple[Any, ...]:
        """The arguments of a call, in order. Parameters without a role get their expected value, or `None`."""
        return tuple(by_role.get(_ROLES.get(name, ""), _EXPECTED.get(name)) for name in self.parameters)


def make_call(
    name: str, signature: Signature, layouts: dict[Form, str], original: Callable[..., Any]
) -> Callable[..., Any]:
    """The code of a replaced function."""
    at_value, at_shapes = signature.position("value"), signature.position("shapes")
    at_locations, at_weights = signature.position("locations"), signature.position("weights")
    assert at_value is not None and at_shapes is not None and at_locations is not None and at_weights is not None
    at_sizes, at_starts = signature.position("sizes"), signature.position("starts")
    at_points, expected = signature.position("points"), signature.expected

    def call(*arguments: Any) -> Any:
        value, locations, weights = arguments[at_value], arguments[at_locations], arguments[at_weights]
        if not (isinstance(locations, Tensor) and isinstance(weights, Tensor)):
            return original(*arguments)
        layout = layouts.get((isinstance(value, (list, tuple)), locations.dim(), weights.dim()))
        if layout is None or not _is_ours(locations):
            return original(*arguments)
        for at, only in expected:
            if arguments[at] != only:
                return original(*arguments)
        shapes, starts = arguments[at_shapes], None
        points = None if at_points is None else arguments[at_points]
        if at_sizes is not None and arguments[at_sizes] is not None:
            shapes = arguments[at_sizes]
        elif at_starts is not None:
            starts = arguments[at_starts]
        if points is None and not (locations.dim() == 6 and weights.dim() == 5):
            split = _split_levels(len(shapes), locations, weights)
            if split is None:
                return original(*arguments)
            locations, weights = split
        value = with_gradient_by_channels(_with_pixels_first(layout, value, locations))
        if torch.compiler.is_compiling():
            return attend(value, shapes, starts, locations, weights, points, False)
        try:
            return attend(value, shapes, starts, locations, weights, points, False)
        except (TypeError, ValueError, RuntimeError) as error:
            _report(name, locations, error)
            return original(*arguments)

    return call


def _split_levels(levels: int, locations: Tensor, weights: Tensor) -> tuple[Tensor, Tensor] | None:
    """Locations and weights with an axis for levels and one for points: views."""
    if locations.dim() == 5:
        batch, queries, heads, samples, _ = locations.shape
        samples = plain_number(samples)
        if levels == 0 or samples % levels != 0:
            return None
        locations = locations.view(batch, queries, heads, levels, samples // levels, 2)
    if weights.dim() == 4:
        batch, queries, heads, samples = weights.shape
        samples = plain_number(samples)
        if samples != levels * locations.shape[4]:
            return None
        weights = weights.view(batch, queries, heads, levels, samples // levels)
    return locations, weights


def _with_pixels_first(layout: str, value: Any, locations: Tensor) -> Any:
    """Values as `[N, S, M, D]`; a view if they are one tensor."""
    if layout == data.PIXELS:
        return value
    if layout == data.CHANNELS:
        return value.permute(0, 3, 1, 2)
    if layout == data.IMAGE_LIST:
        value = [level.unflatten(0, (locations.shape[0], locations.shape[2])).flatten(3) for level in value]
    return torch.cat([level.permute(0, 3, 1, 2) for level in value], dim=1)


def with_gradient_by_channels(value: Tensor) -> Tensor:
    """The same values, `[N, S, C]` or `[N, S, M, D]`, whose gradient lies in memory as that of the originals does:
    channels before pixels.

    Only for a single image on the CPU. If the gradient of such an image has channels last and reaches BatchNorm, as in
    D-FINE and DEIMv2, PyTorch reads it in the wrong order: see docs/troubleshooting.md.
    """
    if not (value.is_cpu and value.requires_grad and value.dim() >= 3 and value.shape[0] == 1):
        return value
    turned = value.flatten(2).transpose(1, 2)
    # All of it: the gradient of a slice is a new tensor, contiguous in the order of these axes.
    whole = turned.narrow(2, 0, turned.shape[2])
    return whole.transpose(1, 2).reshape(value.shape)


# When the original is better ----------------------------------------------------------------------------------

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# GPUs on which the operator does not run.
_given_up: set[torch.device] = set()
# Warnings that were given.
_said: set[str] = set()


def _is_ours(locations: Tensor) -> bool:
    """Whether the operator can stand in for the original here.

    Not in an export, which must not depend on this package unless `msdeform.onnx` keeps the operator, and not on
    devices without a fast kernel.
    """
    if torch.compiler.is_compiling():
        return not is_exported() or is_kept_by_export()
    if torch._C._is_tracing():
        return is_kept_by_trace()
    if locations.is_cuda:
        # Builds for AMD's GPUs also call their device `cuda`.
        return torch.version.cuda is not None and locations.dtype in _DTYPES and locations.device not in _given_up
    return locations.device.type in ("cpu", "meta")


def _report(name: str, locations: Tensor, error: Exception) -> None:
    """Handles an error of the operator, before the original runs.

    The original then accepts the call, or reports in its own words what is wrong. Errors that the original cannot
    survive are raised here.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        raise error
    if locations.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # Shapes that cannot be read, or a kernel not compiled yet: another call may work.
    if locations.is_cuda and isinstance(error, RuntimeError):
        if not isinstance(error, _native.Unavailable):
            raise error  # After a fault on the GPU nothing can continue.
        _given_up.add(locations.device)
        where = f"on {locations.device}, so all replaced functions run their originals there"
    else:
        where = f"in a call of {name}, which runs the original"
    if where not in _said:
        _said.add(where)
        warn(f"msdeform does not run {where}: {error}")
