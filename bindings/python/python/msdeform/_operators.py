"""The operators as data, and their definitions in PyTorch.

`OPERATORS` is the table. Kernels, derivatives, batches, FLOP formulas, sharding rules and exports are written once and
read it, so a further operator is a further entry, its reference and its public function.

An operator has one or two forms. In `numbers` the levels are a list of integers, four for each level: height, width,
start, points. In `tensor_levels` they are tensors, which the kernel reads when it runs, for graphs that do not know the
numbers.

Defined by `torch.library.Library` and not by the decorator `custom_op`, which took 17 us a call in a trial against 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference

LIBRARY = torch.library.Library("msdeform", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
# Reading a tensor on the GPU waits for it, which a captured graph cannot. Newer versions of the compiler
# split the graph there when told.
_CUDAGRAPH_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
_READING_TAGS = _TAGS if _CUDAGRAPH_UNSAFE is None else (*_TAGS, _CUDAGRAPH_UNSAFE)


class Input(NamedTuple):
    """A tensor that an operator reads."""

    name: str
    # The numbers of axes that it may have, and what they are.
    axes: tuple[int, ...]
    shape: str
    # The axis of the heads; `None` if all heads share the tensor.
    head_axis: int | None = 2


_VALUE = Input("value", (4,), "[batch, pixels, heads, channels]")
_POSITIONS, _SHARES = "[batch, queries, heads, levels, points, 2]", "[batch, queries, heads, levels, points]"


class Call(NamedTuple):
    """The arguments of a form, sorted by their kind."""

    tensors: tuple[Any, ...]
    # One list, or the tensors of shapes and starts and the list of points.
    levels: tuple[Any, ...]
    options: tuple[Any, ...]
    deterministic: bool


@dataclass(frozen=True, eq=False)
class Form:
    """An operator with its levels as numbers or as tensors: the overloads of both directions."""

    operator: Operator
    forward: Any
    backward: Any
    has_numbers: bool

    @property
    def level_arguments(self) -> int:
        """The number of arguments that describe the levels."""
        return 1 if self.has_numbers else 3

    def call(self, arguments: Sequence[Any]) -> Call:
        """Sorts the arguments of a forward call. The dispatcher leaves out defaults at the end."""
        levels = len(self.operator.inputs)
        options = levels + self.level_arguments
        end = options + len(self.operator.options)
        deterministic = len(arguments) > end and bool(arguments[end])
        given = tuple(arguments)
        return Call(given[:levels], given[levels:options], given[options:end], deterministic)


class Operator:
    """An operator: its name in `torch.ops.msdeform`, what it reads, and what computes it for derivatives.

    Args:
        name: of the forward direction; the gradient's is `<name>_backward`.
        inputs: the value first; the last two are the positions of samples and their weights or logits.
        options: the arguments after the levels, as in a schema.
        composed: the name of the function of `reference` that takes tensors, levels as numbers and options.
        node: its node in ONNX files.
        has_tensor_levels: whether there is a form with levels as tensors.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[Input, ...],
        options: tuple[str, ...],
        composed: str,
        node: str,
        has_tensor_levels: bool = False,
    ) -> None:
        self.name, self.inputs, self.options, self.node = name, inputs, options, node
        self._composed = composed
        self.numbers = self._define("", ("SymInt[] levels",), _TAGS)
        self.forms = [self.numbers]
        if has_tensor_levels:
            read = ("Tensor spatial_shapes", "Tensor? level_start_index", "SymInt[]? points")
            self.forms.append(self._define("tensor_levels", read, _READING_TAGS))

    def composed(self, *arguments: Any) -> Tensor:
        """The output by the reference, made of PyTorch's operations."""
        result: Tensor = getattr(reference, self._composed)(*arguments)
        return result

    def _define(self, overload: str, levels: tuple[str, ...], tags: tuple[Any, ...]) -> Form:
        read = ", ".join((*(f"Tensor {each.name}" for each in self.inputs), *levels, *self.options))
        suffix, count = overload and f".{overload}", len(self.inputs)
        gradients = ", ".join(["Tensor"] * count)
        LIBRARY.define(f"{self.name}{suffix}({read}, bool deterministic=False) -> Tensor", tags=tags)
        LIBRARY.define(
            f"{self.name}_backward{suffix}(Tensor grad_output, {read}, bool[{count}] wanted, "
            f"bool deterministic=False) -> ({gradients})",
            tags=tags,
        )
        packets = (getattr(torch.ops.msdeform, name) for name in (self.name, f"{self.name}_backward"))
        forward, backward = (getattr(packet, overload or "default") for packet in packets)
        return Form(self, forward, backward, has_numbers=not overload)


PLAIN = Operator(
    "ms_deform_attn",
    (_VALUE, Input("sampling_locations", (5, 6), _POSITIONS), Input("attention_weights", (4, 5), _SHARES)),
    (),
    "attend",
    "MSDeformAttn",
    has_tensor_levels=True,
)
# References are the same for all heads.
FUSED = Operator(
    "ms_deform_attn_from_offsets",
    (
        _VALUE,
        Input("reference_points", (4,), "[batch, queries, references, 2 or 4]", head_axis=None),
        Input("sampling_offsets", (5, 6), _POSITIONS),
        Input("attention_logits", (4, 5), _SHARES),
    ),
    ("float offset_scale", "bool anchors", "bool softmax", "bool nearest"),
    "attend_fused",
    "MSDeformAttnFromOffsets",
)
OPERATORS = (PLAIN, FUSED)


# Devices with a kernel for the fused operator. Elsewhere `MSDeformAttn` and layers under `patch()` compute locations
# and weights themselves and use the plain operator.
_ONE_PASS = frozenset({"cpu", "cuda"})


def is_one_pass(device: torch.device) -> bool:
    """Whether a device has a kernel for the fused operator."""
    return device.type in _ONE_PASS


def wanted_of(arguments: Sequence[Any]) -> Any:
    """The flags `wanted` of a backward call: the last list. The dispatcher may leave out what follows it."""
    return next(each for each in reversed(arguments) if isinstance(each, (list, tuple)))


def named(operator: Operator, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors by name."""
    return {each.name: tensor for each, tensor in zip(operator.inputs, tensors, strict=True)}


def check_axes(operator: Operator, tensors: Sequence[Tensor]) -> None:
    """Refuses tensors with too few axes or too many."""
    for each, tensor in zip(operator.inputs, tensors, strict=True):
        if tensor.dim() not in each.axes:
            raise ValueError(f"`{each.name}` has shape {list(tensor.shape)}, expected {each.shape}")


def output_shape(tensors: Sequence[Tensor]) -> tuple[int, int, int]:
    """The shape of the output, for tensors with the right axes."""
    batch, _pixels, heads, channels = tensors[0].shape
    return batch, tensors[-2].shape[1], heads * channels
