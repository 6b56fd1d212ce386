"""The translations for the exporter by TorchScript, `torch.onnx.export(..., dynamo=False)`.

They are registered once, for every target: which one is meant says `exporting`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .._tracing import kept_for
from . import _export_targets as targets
from ._export_graph import SymbolicGraph

__all__ = ["register"]


@cache
def register(opset_version: int) -> None:
    """Makes the exporter know the operators, from this opset on."""
    import torch

    from .. import operator  # noqa: F401  # Defines what is registered for.

    for name, symbolic in (("ms_deform_attn", _attend), ("ms_deform_attn_from_offsets", _attend_from_offsets)):
        torch.onnx.register_custom_op_symbolic(f"msdeform::{name}", symbolic, opset_version)


def _attend(context: Any, value: Any, locations: Any, weights: Any, *rest: Any) -> Any:
    graph, target = SymbolicGraph(context, (value, locations, weights, *rest)), _target(context)
    if len(rest) == 2:
        output = targets.attend(graph, target, value, locations, weights, _integers(rest[0]))
    else:
        shapes, starts, points = rest[0], _optional(rest[1]), _optional(rest[2])
        counts = None if points is None else _integers(points)
        output = targets.attend_reading(graph, target, value, locations, weights, shapes, starts, counts)
    return _typed(graph, output, value)


def _attend_from_offsets(
    context: Any, value: Any, references: Any, offsets: Any, logits: Any, levels: Any, *rule: Any
) -> Any:
    tensors = (value, references, offsets, logits)
    graph, target = SymbolicGraph(context, (*tensors, levels, *rule)), _target(context)
    scale, anchors, softmax, nearest = (_number(number) for number in rule[:4])
    given = targets.Rule(float(scale), bool(anchors), bool(softmax), bool(nearest))
    output = targets.attend_from_offsets(graph, target, *tensors, _integers(levels), given)
    return _typed(graph, output, value)


def _target(context: Any) -> str:
    target = kept_for.get()
    if target is None:
        raise ValueError(
            "the exporter by TorchScript is told by a context which nodes to write: `with "
            'msdeform.onnx.exporting("msdeform"): torch.onnx.export(...)`'
        )
    if target == "gridsample" and context.opset < 16:
        raise ValueError(f'target "gridsample" needs `opset_version=16` or newer, found {context.opset}')
    return target


def _typed(graph: SymbolicGraph, output: Any, value: Any) -> Any:
    """Tells the exporter the shape, which it knows of standard nodes alone."""
    _, _, heads, channels = graph.sizes(value)
    assert heads is not None and channels is not None
    output.setType(value.type().with_sizes([None, None, heads * channels]))
    return output


def _optional(value: Any) -> Any:
    return None if value.node().mustBeNone() else value


def _number(value: Any) -> Any:
    return value.node().t("value").item() if value.node().kind() == "onnx::Constant" else value.toIValue()


def _integers(values: Any) -> list[int]:
    node = values.node()
    if node.kind() == "onnx::Constant":
        return [int(number) for number in node.t("value").flatten()]
    return [int(_number(each)) for each in node.inputs()]
