"""The translations for the exporter by TorchScript, `torch.onnx.export(..., dynamo=False)`.

They are registered once for all targets. `exporting` sets the target.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from .._operators import Call
from .._tracing import kept_for
from . import _export_targets as targets
from ._export_graph import SymbolicGraph


@cache
def register(opset_version: int) -> None:
    """Makes the exporter know the operators, from this opset on."""
    import torch

    from .. import operator  # noqa: F401  # Registers what is translated.
    from .._operators import OPERATORS

    for each in OPERATORS:
        torch.onnx.register_custom_op_symbolic(f"msdeform::{each.name}", partial(_translate, each), opset_version)


def _translate(operator: Any, context: Any, *arguments: Any) -> Any:
    # All overloads have one name: the number of arguments tells them apart.
    fixed = len(operator.inputs) + len(operator.options) + 1
    form = next(form for form in operator.forms if fixed + form.level_arguments == len(arguments))
    # The last one tells about gradients, which no exported model has.
    tensors, levels, options, _ = form.call(arguments[:-1])
    graph = SymbolicGraph(context, arguments)
    if form.has_numbers:
        levels = (_integers(levels[0]),)
    else:
        starts, points = _optional(levels[1]), _optional(levels[2])
        levels = levels[0], starts, None if points is None else _integers(points)
    types = {"float": float, "bool": bool}
    kinds = (types[option.split()[0]] for option in operator.options)
    options = tuple(kind(_number(number)) for kind, number in zip(kinds, options, strict=True))
    output = targets.translate(graph, _target(context), form, Call(tensors, levels, options, False))
    return _typed(graph, output, tensors[0])


def _target(context: Any) -> str:
    target = kept_for.get()
    if target is None:
        raise ValueError(
            "the exporter by TorchScript found no target; call it as `with "
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
