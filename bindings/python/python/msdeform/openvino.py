"""OpenVINO: this package's operators for its CPU device.

`add_extension(core)` lets a core read and compute ONNX files with `MSDeformAttn` and `MSDeformAttnFromOffsets` of the
domain `msdeform`. Nothing is compiled: OpenVINO calls this package with the addresses of its tensors.

Importing this module imports `openvino`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, ClassVar

from . import _native
from ._array import _threads
from ._levels import flatten, shared_points

try:
    import openvino
    from openvino.frontend.onnx import ConversionExtension
except ImportError as error:
    raise ImportError(
        f"`msdeform.openvino` needs OpenVINO; install it with `pip install openvino` ({error})"
    ) from error
if not hasattr(openvino, "Op"):
    raise ImportError(
        f"`msdeform.openvino` needs `openvino.Op`, which OpenVINO {openvino.__version__} does not have; install a "
        "newer version with `pip install --upgrade openvino`"
    )

__all__ = ["add_extension"]

# By OpenVINO's names of dtypes, because NumPy has no bfloat16.
_CODES = {name: _native.DTYPES.index(name) for name in ("f32", "f16", "bf16", "f64")}
# The inputs of a node are the value, sizes and starts of the levels, and what its samples are made of.
_FIRST_OF_SAMPLES = 3


class _Attention(openvino.Op):
    """What both operators share."""

    tensors: ClassVar[tuple[str, ...]]
    # What an attribute is if a node does not have it.
    defaults: ClassVar[dict[str, Any]]
    # How many threads compute a node, and the cores that they may run on.
    threads: ClassVar[int]
    cores: ClassVar[set[int]]

    def __init__(self, inputs: Sequence[Any] | None = None, attributes: dict[str, Any] | None = None) -> None:
        self.attributes = {**self.defaults, **(attributes or {})}
        # As OpenVINO writes a list into its own files, of which it cannot read an empty one.
        self.attributes["points"] = ", ".join(map(str, self.attributes["points"]))
        # A core that reads OpenVINO's own files sets inputs and attributes later.
        super().__init__(self, None if inputs is None else list(inputs))

    def validate_and_infer_types(self) -> None:
        """Sets dtype and shape of the output, as far as they are known before a run."""
        expected = _FIRST_OF_SAMPLES - 1 + len(self.tensors)
        if self.get_input_size() != expected:
            raise ValueError(f"the node has {self.get_input_size()} inputs, expected {expected}")
        value, positions = self.get_input_partial_shape(0), self.get_input_partial_shape(expected - 2)
        for name, shape, axes in ((self.tensors[0], value, (4,)), (self.tensors[-2], positions, (5, 6))):
            if shape.rank.is_static and len(shape) not in axes:
                wanted = " or ".join(map(str, axes))
                raise ValueError(f"`{name}` has shape {shape} with {len(shape)} axes, expected {wanted} axes")
        unknown = openvino.Dimension()
        batch, _, heads, channels = value if value.rank.is_static else [unknown] * 4
        queries = positions[1] if positions.rank.is_static else unknown
        sizes = [axis.get_length() for axis in (heads, channels) if axis.is_static]
        width = openvino.Dimension(prod(sizes)) if len(sizes) == 2 else unknown
        self.set_output_type(0, self.get_input_element_type(0), openvino.PartialShape([batch, queries, width]))

    def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> _Attention:
        """Another node with the same attributes."""
        return type(self)(new_inputs, {**self.attributes, "points": self.points()})

    def visit_attributes(self, visitor: Any) -> bool:
        """Writes the attributes into OpenVINO's own files, or reads them."""
        visitor.on_attributes(self.attributes)
        return True

    def has_evaluate(self) -> bool:
        """Whether `evaluate` computes this node: OpenVINO asks before it compiles a model."""
        return True

    def evaluate(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Computes the output into OpenVINO's memory."""
        shapes, starts = (inputs[index].data for index in (1, 2))
        if shapes.ndim != 2 or shapes.shape[1] != 2:
            raise ValueError(
                f"`spatial_shapes` has shape {list(shapes.shape)}, expected [levels, 2], a height and a width for "
                "each level"
            )
        operands = [_operand(*named) for named in zip(self.tensors, [inputs[0], *inputs[3:]], strict=True)]
        value, positions = operands[0][2], operands[-2][2]
        points = self.points() or shared_points(positions, None, len(shapes))
        levels = flatten(shapes.tolist(), starts.tolist(), points)
        output = outputs[0]
        output.shape = [value[0], positions[1], value[2] * value[3]]
        arguments = (self.expanded(operands), self.options())
        with _unpinned(self.cores):
            _native.forward(levels, (self.threads, None), arguments, output.data.ctypes.data)
        return True

    def points(self) -> list[int]:
        """The points of each level. Empty if the node does not have the attribute."""
        return [int(count) for count in self.attributes["points"].split(",") if count.strip()]

    def expanded(self, operands: list[_Operand]) -> list[_Operand]:
        """The operands of the native call."""
        return operands

    def options(self) -> tuple[Any, ...] | None:
        """The options of the operator, in the order of its schema."""
        return None


_Operand = tuple[int, int, tuple[int, ...], tuple[int, ...]]


def _cores() -> set[int]:
    """The cores that the calling thread may run on; none where the system does not say so."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@contextmanager
def _unpinned(cores: set[int]) -> Iterator[None]:
    """Lets the calling thread run on these cores.

    OpenVINO pins each of its threads to a core. Threads that start in such a thread would all take turns on that core.
    """
    pinned = _cores()
    if pinned == cores:
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)


def _operand(name: str, tensor: Any) -> _Operand:
    """Address, dtype, shape and strides of a tensor, which is contiguous."""
    dtype = tensor.element_type.get_type_name()
    if dtype not in _CODES:
        raise TypeError(f"`{name}` is {dtype}, expected {', '.join(_CODES)}")
    # NumPy's view of bfloat16 has another dtype, at the same address.
    shape = tuple(tensor.shape)
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return tensor.data.ctypes.data, _CODES[dtype], shape, strides


class _Plain(_Attention):
    tensors = ("value", "sampling_locations", "attention_weights")
    defaults: ClassVar[dict[str, Any]] = {"points": []}


class _FromOffsets(_Attention):
    tensors = ("value", "reference_points", "sampling_offsets", "attention_logits")
    defaults: ClassVar[dict[str, Any]] = {"points": [], "offset_scale": 0.5, "anchors": 0, "softmax": 1, "nearest": 0}

    def expanded(self, operands: list[_Operand]) -> list[_Operand]:
        """References of one image or query for all of them, by strides of zero."""
        value, (address, code, shape, strides), *samples = operands
        if len(shape) != 4:
            raise ValueError(
                f"`reference_points` has shape {list(shape)}, expected [batch, queries, references, 2 or 4]"
            )
        for axis, size in enumerate(samples[0][2][:2]):
            if shape[axis] == 1 != size:
                shape, strides = _with(shape, axis, size), _with(strides, axis, 0)
        return [value, (address, code, shape, strides), *samples]

    def options(self) -> tuple[Any, ...]:
        """Scale, anchors, softmax, nearest."""
        scale, *flags = (self.attributes[name] for name in ("offset_scale", "anchors", "softmax", "nearest"))
        return (float(scale), *map(bool, flags))


def _with(numbers: tuple[int, ...], axis: int, number: int) -> tuple[int, ...]:
    return (*numbers[:axis], number, *numbers[axis + 1 :])


# Domain and name in ONNX files.
_NODES = (("msdeform", "MSDeformAttn", _Plain), ("msdeform", "MSDeformAttnFromOffsets", _FromOffsets))


def add_extension(core: Any, threads: int | None = None) -> None:
    """Adds the operators to an `openvino.Core`, for its CPU device.

    `core.read_model` then reads ONNX files with `MSDeformAttn` and `MSDeformAttnFromOffsets` of the domain `msdeform`,
    with any attributes, and `core.compile_model(model, "CPU")` computes them in f32, f16 or bf16, in any shapes.

    Args:
        core: the core that reads and compiles the model.
        threads: how many threads compute a node, because OpenVINO does not lend its own to Python. `None` takes
            `OMP_NUM_THREADS`, else the cores that this thread may run on. Set it to the `INFERENCE_NUM_THREADS` of the
            model divided by its `NUM_STREAMS`, if you set these.
    """
    if not isinstance(core, openvino.Core):
        raise TypeError(f"`core` is a {type(core).__module__}.{type(core).__name__}, expected an openvino.Core")
    # Here, because the threads of OpenVINO that call the operators are pinned.
    common = {"threads": _threads(threads), "cores": _cores()}
    for domain, name, kind in _NODES:
        operator = type(name, (kind,), common)
        core.add_extension(operator)
        core.add_extension(ConversionExtension(name, domain, partial(_converted, operator)))


def _converted(operator: type[_Attention], node: Any) -> list[Any]:
    """The outputs of a node that stands for one of an ONNX file."""
    inputs = [node.get_input(index) for index in range(node.get_input_size())]
    attributes = {name: node.get_attribute(name, value) for name, value in operator.defaults.items()}
    value, samples = inputs[0], inputs[_FIRST_OF_SAMPLES:]
    # The operator takes samples in the dtype of the value, or all of them in f32.
    if any(sample.get_element_type() != value.get_element_type() for sample in samples):
        samples = [openvino.opset13.convert(sample, "f32").output(0) for sample in samples]
    outputs: list[Any] = operator([*inputs[:_FIRST_OF_SAMPLES], *samples], attributes).outputs()
    return outputs
