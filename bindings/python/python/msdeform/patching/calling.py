"""From a package's call to the operator's.

What a parameter is follows from its name. How values, locations and weights are laid out follows from trials, see
`checking`: a call that comes in a form that was not tried goes to the original.
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

# What a parameter is, by its name.
_ROLES = {
    "value": "value",
    "value_spatial_shapes": "shapes",
    "spatial_shapes": "shapes",
    # The same as plain numbers, which cost no synchronisation. Models that have them lay out their levels one after
    # the other, so that the starts are not needed either.
    "value_spatial_shapes_list": "sizes",
    "value_spatial_shapes_hw": "sizes",
    "value_level_start_index": "starts",
    "level_start_index": "starts",
    "sampling_locations": "locations",
    "attention_weights": "weights",
    "num_points_list": "points",
}
# Parameters that ask for something else unless they are this.
_EXPECTED: dict[str, Any] = {"method": "default", "value_shape": "default", "allow_acceleration": True}

# Whether values are a list of levels, and the axes of locations and of weights.
Form = tuple[bool, int, int]


@dataclass(frozen=True)
class Signature:
    """Which of a function's parameters is what."""

    parameters: tuple[str, ...]

    def position(self, role: str) -> int | None:
        """The parameter that plays a role."""
        return next((at for at, name in enumerate(self.parameters) if _ROLES.get(name) == role), None)

    @property
    def expected(self) -> tuple[tuple[int, Any], ...]:
        """Positions of the parameters that must be something, and what."""
        return tuple((at, _EXPECTED[name]) for at, name in enumerate(self.parameters) if name in _EXPECTED)

    def arguments(self, **by_role: Any) -> tuple[Any, ...]:
        """A call, in order; what it says nothing about is as expected, or nothing."""
        return tuple(by_role.get(_ROLES.get(name, ""), _EXPECTED.get(name)) for name in self.parameters)


def make_call(
    name: str, signature: Signature, layouts: dict[Form, str], original: Callable[..., Any]
) -> Callable[..., Any]:
    """What a replaced function does."""
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
    """Values as `[N, S, M, D]`; a view where they are one tensor."""
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

    Only for a single image on the CPU. If its gradient has channels last and reaches BatchNorm, as in D-FINE and
    DEIMv2, PyTorch mistakes it for one that has not: see docs/troubleshooting.md.
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
# What was warned about.
_said: set[str] = set()


def _is_ours(locations: Tensor) -> bool:
    """Whether the operator can stand in for the original here.

    Not in an export, which must not depend on this package unless `msdeform.onnx` says so, and not where it does not
    run, or only slowly.
    """
    if torch.compiler.is_compiling():
        return not is_exported() or is_kept_by_export()
    if torch._C._is_tracing():
        return is_kept_by_trace()
    if locations.is_cuda:
        # `cuda` is also what builds for AMD's GPUs call theirs.
        return torch.version.cuda is not None and locations.dtype in _DTYPES and locations.device not in _given_up
    return locations.device.type in ("cpu", "meta")


def _report(name: str, locations: Tensor, error: Exception) -> None:
    """What to make of an error before the original takes over: what it took it still takes, and what is wrong with a
    call it says in its own words."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        raise error
    if locations.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # Shapes that cannot be read, a kernel that is not compiled yet: another call may do.
    if locations.is_cuda and isinstance(error, RuntimeError):
        if not isinstance(error, _native.Unavailable):
            raise error  # A GPU that failed is nothing to go on with.
        _given_up.add(locations.device)
        where = f"on {locations.device}, so all replaced functions compute as before there"
    else:
        where = f"in a call of {name}, which computes as before"
    if where not in _said:
        _said.add(where)
        warn(f"msdeform does not run {where}: {error}")
