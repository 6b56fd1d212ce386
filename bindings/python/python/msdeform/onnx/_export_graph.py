"""A graph of ONNX nodes under construction, the same for both exporters of PyTorch.

The exporters pass different values to a translation (of ONNX Script, of TorchScript) and make nodes in different ways.
The targets use a `Graph` and know neither exporter.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np

# Dtypes, by their numbers in ONNX.
FLOAT, INT32, INT64, FLOAT16, DOUBLE, BFLOAT16 = 1, 6, 7, 10, 11, 16

# A value of either exporter.
Value = Any


class Graph(Protocol):
    """The functions of an exporter that a translation uses."""

    def node(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        """Adds a node, `Name` of the standard domain or `domain::Name`; returns its output."""

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """Adds a tensor."""

    def sizes(self, value: Value) -> list[int | None]:
        """The shape of one of the translation's arguments; `None` for a size that is unknown until the graph runs."""

    def format(self, value: Value) -> int:
        """The dtype of one of the translation's arguments."""

    def numbers(self, value: Value) -> list[int] | None:
        """The integers in one of the translation's arguments, if they are known already."""

    def follows_from_sizes(self, value: Value) -> bool:
        """Whether one of the translation's arguments follows from constants and sizes of the model's inputs alone."""


def cast(graph: Graph, tensor: Value, kind: int) -> Value:
    """A tensor in a format; itself if it has it."""
    return tensor if graph.format(tensor) == kind else graph.node("Cast", tensor, to=kind)


def integers(graph: Graph, *numbers: int) -> Value:
    """A list of integers."""
    return graph.constant(np.array(numbers, dtype=np.int64))


def number(graph: Graph, value: float) -> Value:
    """A number of float32."""
    return graph.constant(np.array(value, dtype=np.float32))


def part_of(graph: Graph, tensor: Value, start: int, end: int, axis: int) -> Value:
    """A part of a tensor. Not by `Split`, whose attributes differ between opsets."""
    return graph.node("Slice", tensor, *(integers(graph, each) for each in (start, end, axis)))


class ScriptGraph:
    """By ONNX Script, for `torch.onnx.export(..., dynamo=True)`."""

    def node(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        domain, _, plain = name.rpartition("::")
        return _operator(domain, plain)(*inputs, **attributes)

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        import onnx_ir

        return self.node("Constant", value=onnx_ir.tensor(array))

    def sizes(self, value: Value) -> list[int | None]:
        return [size if isinstance(size, int) else None for size in value.shape]

    def format(self, value: Value) -> int:
        return int(value.dtype)

    def numbers(self, value: Value) -> list[int] | None:
        return None  # The exporter folds constants only when all nodes are translated.

    def follows_from_sizes(self, value: Value) -> bool:
        producer = value.producer()
        if producer is None:
            return str(value.name).startswith(_CONSTANTS)
        node = producer.meta.get("node")
        return node is not None and _follows_from_sizes(node)


# How `torch.export` names constants in the model's code, and its buffers.
_CONSTANTS = ("c_", "b_")


def _follows_from_sizes(node: Any) -> bool:
    import torch

    if node.op == "placeholder":
        return str(node.name).startswith(_CONSTANTS)
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return True
    return all(_follows_from_sizes(each) for each in node.all_input_nodes)


class SymbolicGraph:
    """By TorchScript, for `torch.onnx.export(..., dynamo=False)`."""

    def __init__(self, context: Any, arguments: tuple[Value, ...]) -> None:
        self._context = context
        # What the exporter infers of shapes ends at the first node that is no standard; the trace knows all of them.
        inputs = context.original_node.inputs()
        self._traced = {each.debugName(): traced.type() for each, traced in zip(arguments, inputs, strict=True)}

    def node(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        kinds = {int: "i", float: "f", str: "s", list: "i"}
        named = {f"{key}_{kinds[type(given)]}": given for key, given in attributes.items()}
        return self._context.op(name, *inputs, **named)

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        import torch

        return self._context.op("Constant", value_t=torch.from_numpy(array))

    def sizes(self, value: Value) -> list[int | None]:
        traced, inferred = self._traced[value.debugName()].varyingSizes(), value.type().varyingSizes()
        if traced is None and inferred is None:
            raise ValueError(
                f"the exporter by TorchScript does not know how many axes `{value.debugName()}` has; export with "
                "`dynamo=True` and `msdeform.onnx.table(...)`"
            )
        if traced is None or inferred is None:
            sizes: list[int | None] = inferred if traced is None else traced
        else:
            sizes = [one if one is not None else other for one, other in zip(traced, inferred, strict=True)]
        # Numbers of images and queries are the example's. All else is the model's own.
        return sizes if len(sizes) < 4 else [None, None, *sizes[2:]]

    def format(self, value: Value) -> int:
        import torch

        formats = {
            torch.float32: FLOAT,
            torch.float16: FLOAT16,
            torch.float64: DOUBLE,
            torch.bfloat16: BFLOAT16,
            torch.int32: INT32,
            torch.int64: INT64,
        }
        # The exporter's own nodes may have become wider than what was traced: divisions of integers do.
        return formats[value.type().dtype() or self._traced[value.debugName()].dtype()]

    def numbers(self, value: Value) -> list[int] | None:
        node = value.node()
        return [int(number) for number in node.t("value").flatten()] if node.kind() == "onnx::Constant" else None

    def follows_from_sizes(self, value: Value) -> bool:
        node = value.node()
        if node.kind() in ("onnx::Constant", "onnx::Shape"):
            return True
        return node.kind() != "prim::Param" and all(self.follows_from_sizes(each) for each in node.inputs())


@cache
def _operator(domain: str, name: str) -> Any:
    """A node of ONNX Script. The exporter asks for its description, of others' nodes too."""
    import onnxscript

    if not domain:
        # What PyTorch's own translations are written in; the exporter converts all of them to the opset asked for.
        return getattr(onnxscript.opset18, name)
    from onnx.defs import OpSchema

    inputs, attributes = _described(f"{domain}::{name}")
    types = ["tensor(float)", "tensor(float16)", "tensor(int64)", "tensor(int32)"]
    kinds = {"ints": OpSchema.AttrType.INTS, "int": OpSchema.AttrType.INT, "float": OpSchema.AttrType.FLOAT}
    schema = OpSchema(
        name,
        domain,
        1,
        inputs=[OpSchema.FormalParameter(each, f"type of {each}") for each in inputs],
        outputs=[OpSchema.FormalParameter("output", f"type of {inputs[0]}")],
        type_constraints=[(f"type of {each}", types, "") for each in inputs],
        attributes=[OpSchema.Attribute(each, kinds[kind], "", required=False) for each, kind in attributes.items()],
    )
    return onnxscript.values.Op(onnxscript.values.Opset(domain, 1), name, schema)


_PLAIN = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights")
# Inputs and attributes of other packages' nodes.
_NODES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "mmdeploy::MMCVMultiScaleDeformableAttention": (_PLAIN, {"im2col_step": "int"}),
    "trt.plugins::MultiscaleDeformableAttnPlugin_TRT": (_PLAIN, {}),
}


def _described(name: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Inputs and attributes of a node that is not standard."""
    if name in _NODES:
        return _NODES[name]
    from .._operators import OPERATORS

    operator = next(each for each in OPERATORS if name == f"msdeform::{each.node}")
    value, *others = (each.name for each in operator.inputs)
    options = (option.split() for option in operator.options)
    kinds = {name: {"bool": "int"}.get(kind, kind) for kind, name in options}
    return (value, *_PLAIN[1:3], *others), {"points": "ints", **kinds}
