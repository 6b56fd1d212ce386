"""Turns the `forward` of a package's layer into a call of the fused operator.

A parameter's role follows from its name. The meaning of a mask and the form of the result follow from trials (see
`checking_layers`). A call in a form that was not tried goes to the original. So does a call of a layer in which another
program has replaced a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from .. import _operators
from .._tracing import is_traced
from ..from_offsets import ms_deform_attn_from_offsets
from . import calling
from .data import Layer, roles

# The role of a parameter, by its name. All known versions ignore other parameters.
ROLES = roles(
    query="hidden_states query",
    positions="position_embeddings query_pos",
    pixels="encoder_hidden_states input_flatten value",
    identity="identity",
    mask="attention_mask input_padding_mask key_padding_mask value_mask",
    references="refer_bbox reference_points",
    shapes="input_spatial_shapes spatial_shapes value_shapes",
    # The same as plain numbers.
    sizes="input_spatial_shapes_hw spatial_shapes_list",
    starts="input_level_start_index level_start_index",
)


class Form(NamedTuple):
    """The form of a call."""

    # 2 for points, 4 for boxes.
    coordinates: int
    # Whether every level has its own reference. Otherwise all levels share one.
    is_per_level: bool
    has_mask: bool


class Answer(NamedTuple):
    """The result of a call in this form."""

    # Whether the mask is true for padding. Otherwise the mask is true for the other pixels.
    masks_padding: bool
    # The number of axes of the returned weights; 0 if the layer returns only the output.
    weight_axes: int


@dataclass(frozen=True)
class Known:
    """A known `forward`."""

    layer: Layer
    # Its parameters without `self`.
    parameters: tuple[str, ...]
    answers: Mapping[Form, Answer]
    # What computed inside when it was tried: functions by their names in the module, functions or classes of modules by
    # the names of attributes.
    functions: Mapping[str, Any]
    inner: Mapping[str, Any]


def make_layer_call(name: str, known: Known, original: Callable[..., Any]) -> Callable[..., Any]:
    """The code of a replaced `forward`. It gets the current `known.functions`, and the arguments of the call."""
    layer, answers = known.layer, known.answers
    at = {ROLES[parameter]: place for place, parameter in enumerate(known.parameters) if parameter in ROLES}
    at_query, at_pixels, at_references = at["query"], at["pixels"], at["references"]

    def given(arguments: tuple[Any, ...], role: str) -> Any:
        place = at.get(role)
        return None if place is None else arguments[place]

    def call(functions: tuple[Any, ...], self: Any, *arguments: Any, **others: Any) -> Any:
        query, pixels, references = arguments[at_query], arguments[at_pixels], arguments[at_references]
        if not (
            isinstance(query, Tensor)
            and isinstance(pixels, Tensor)
            and isinstance(references, Tensor)
            and references.dim() == 4
            and _operators.is_one_pass(query.device)
            and calling._is_ours(references)
            and _is_as_tried(known, functions, self)
        ):
            return original(self, *arguments, **others)
        shapes, starts = given(arguments, "sizes"), None
        if shapes is None:
            shapes, starts = given(arguments, "shapes"), given(arguments, "starts")
        # A traced tensor of shapes cannot be read, so the original runs.
        if shapes is None or (isinstance(shapes, Tensor) and is_traced()):
            return original(self, *arguments, **others)
        mask, levels = given(arguments, "mask"), len(shapes)
        answer = answers.get(Form(references.shape[3], references.shape[2] == levels, mask is not None))
        if answer is None or references.shape[2] not in (1, levels):
            return original(self, *arguments, **others)

        identity = query
        if "positions" in at and arguments[at["positions"]] is not None:
            query = _with_positions(self, query, arguments[at["positions"]])
        is_turned = layer.batch_first is not None and not getattr(self, layer.batch_first)
        if is_turned:
            query, pixels = query.transpose(0, 1), pixels.transpose(0, 1)
        value = self.value_proj(pixels) if layer.projects_values else calling.with_gradient_by_channels(pixels)
        if mask is not None:
            value = value.masked_fill((mask if answer.masks_padding else ~mask)[..., None], 0.0)
        projected = value, references, self.sampling_offsets(query), self.attention_weights(query)
        options: dict[str, Any] = {
            "level_start_index": starts,
            "offset_scale": 0.5 if layer.offset_scale is None else getattr(self, layer.offset_scale),
            "return_weights": answer.weight_axes > 0,
        }
        heads, points = getattr(self, layer.heads), getattr(self, layer.points)
        if torch.compiler.is_compiling():
            output = _attend(projected, shapes, heads, points, options)
        else:
            try:
                output = _attend(projected, shapes, heads, points, options)
            except (TypeError, ValueError, RuntimeError) as error:
                calling._report(name, references, error)
                return original(self, *arguments, **others)
        output, weights = output if answer.weight_axes else (output, None)
        if layer.projects_values:
            output = self.output_proj(output)
        if is_turned:
            output = output.transpose(0, 1)
        if "identity" in at:
            added = arguments[at["identity"]]
            output = self.dropout(output) + (identity if added is None else added)
        if weights is None:
            return output
        return output, weights.flatten(3) if answer.weight_axes == 4 else weights

    return call


def _attend(
    projected: tuple[Tensor, Tensor, Tensor, Tensor], shapes: Any, heads: int, points: Any, options: dict[str, Any]
) -> Any:
    """The operator on what projections give: `[N, S, M * D]`, `[N, Lq, M * samples * 2]`, `[N, Lq, M * samples]`."""
    value, references, offsets, logits = projected
    samples = (len(shapes), points) if isinstance(points, int) else (sum(points),)
    return ms_deform_attn_from_offsets(
        value.unflatten(-1, (heads, -1)),
        shapes,
        references,
        offsets.unflatten(-1, (heads, *samples, 2)),
        logits.unflatten(-1, (heads, *samples)),
        points=None if isinstance(points, int) else list(points),
        **options,
    )


def _with_positions(self: Any, query: Tensor, positions: Tensor) -> Tensor:
    """Uses the layer's own method if it has one."""
    add = getattr(self, "with_pos_embed", None)
    result: Tensor = query + positions if add is None else add(query, positions)
    return result


def _is_as_tried(known: Known, functions: tuple[Any, ...], self: Any) -> bool:
    """Whether functions, attributes and inner modules are those that were tried, and no hook would be skipped."""
    for tried, found in zip(known.functions.values(), functions, strict=True):
        if found is not tried:
            return False
    if not known.layer.computes_as_known(self):
        return False
    for attribute, tried in known.inner.items():
        found = getattr(self, attribute, None)
        if isinstance(tried, type):
            if found is not None and not (type(found) is tried and _is_unwatched(found)):
                return False
        elif found is not tried:
            return False
    return True


def _is_unwatched(inner: nn.Module) -> bool:
    """Whether a module runs the `forward` of its class, without hooks."""
    return not (
        "forward" in inner.__dict__
        or inner._forward_hooks
        or inner._forward_pre_hooks
        or inner._backward_hooks
        or inner._backward_pre_hooks
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )
