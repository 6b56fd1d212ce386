"""Translations of the operators for both ONNX exporters of PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, get_args

Target = Literal["msdeform", "mmdeploy", "tensorrt", "gridsample"]
TARGETS: tuple[str, ...] = get_args(Target)

# The oldest opset that has all emitted operators in their present form.
_OLDEST_OPSET = 13


def table(target: Target = "msdeform") -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translations of this package's operators, for `torch.onnx.export(..., custom_translation_table=...)`.

    Args:
        target: which nodes a call becomes.
            `"msdeform"`: `MSDeformAttn` and `MSDeformAttnFromOffsets` of the domain `msdeform`.
            `"mmdeploy"`: `MMCVMultiScaleDeformableAttention` of the domain `mmdeploy`.
            `"tensorrt"`: `MultiscaleDeformableAttnPlugin_TRT` of the domain `trt.plugins`.
            `"gridsample"`: standard operators only, `GridSample` among them; opset 16 and newer.

    Returns:
        A dictionary. You can add translations of other operators.

    In an export with this table, functions that `msdeform.patch()` replaced keep the operator. In an export without
    the table they contain the original code.
    """
    _check_target(target)
    _import("torch", "onnx", "onnxscript")
    from .. import operator  # noqa: F401  # Registers what is translated.
    from .._operators import OPERATORS, PLAIN

    # Without a translation PyTorch exports the fused operator as its own operations and the plain operator.
    translated = OPERATORS if target == "msdeform" else (PLAIN,)
    return {form.forward: _translation(form, target) for each in translated for form in each.forms}


def _translation(form: Any, target: str) -> Callable[..., Any]:
    from . import _export_targets as targets
    from ._export_graph import ScriptGraph

    def translated(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        call = form.call(bound.args)
        return targets.translate(ScriptGraph(), target, form, call)

    # The exporter reads the parameters of a translation.
    signature = inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
            )
            for each in form.forward._schema.arguments
        ]
    )
    translated.__signature__ = signature  # type: ignore[attr-defined]
    return translated


@contextmanager
def exporting(target: Target = "msdeform") -> Iterator[None]:
    """Exports inside of this context keep the operators, in functions that `msdeform.patch()` replaced too.

    `torch.onnx.export(..., dynamo=False)`, the exporter by TorchScript that several packages call themselves, writes
    the nodes of `target` (see `table`). `torch.export.export` and `torch.jit.trace` keep `torch.ops.msdeform.*` in
    their results. Pass these to `torch.onnx.export` with a `table`.

    `torch.onnx.export(..., dynamo=True)` ignores this context and uses its `custom_translation_table`.
    """
    _check_target(target)
    _import("torch")
    from .. import _tracing
    from . import _export_symbolic

    _export_symbolic.register(_OLDEST_OPSET)
    token = _tracing.kept_for.set(target)
    try:
        yield
    finally:
        _tracing.kept_for.reset(token)


def _check_target(target: str) -> None:
    if target not in TARGETS:
        known = ", ".join(f'"{name}"' for name in TARGETS)
        raise ValueError(f"`target` is {target!r}; expected one of {known}")


def _import(*names: str) -> None:
    """Imports packages; the error names a missing one and how to install it."""
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ModuleNotFoundError(
                f"exporting to ONNX needs {' and '.join(names)}, and {name} is not installed; `pip install {name}`",
                name=name,
            ) from error
