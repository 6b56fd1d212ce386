"""Whether PyTorch is tracing, and for what purpose."""

from __future__ import annotations

import sys
import warnings
from contextvars import ContextVar
from typing import Any

import torch

from ._operators import FUSED, PLAIN


def is_traced() -> bool:
    """Whether the call becomes part of a graph, which may later run with other sizes."""
    return bool(torch.compiler.is_compiling() or torch._C._is_tracing())


def is_exported() -> bool:
    """Whether the current compilation is an export.

    It reads the flag behind `torch.compiler.is_exporting()`, because `torch.compile` treats that function as always
    true, for example in PyTorch 2.11. Before 2.7 neither exists, and a strict export looks like `torch.compile`.
    """
    if _has_flag:
        return bool(torch.compiler._is_exporting_flag)
    return not torch.compiler.is_dynamo_compiling()


_has_flag = hasattr(torch.compiler, "_is_exporting_flag")


def plain_number(size: Any) -> Any:
    """A size as a number that is fixed in the model. `torch.jit.trace` makes sizes tensors, which stay variable."""
    if not isinstance(size, torch.Tensor):
        return size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return int(size)


# The target of `msdeform.onnx.exporting`, inside of it.
kept_for: ContextVar[str | None] = ContextVar("kept_for", default=None)


def is_kept_by_trace() -> bool:
    """Whether a trace of TorchScript may contain this package's operators."""
    return kept_for.get() is not None


def is_kept_by_export() -> bool:
    """Whether the result of `torch.export` may contain this package's operators.

    In `torch.onnx.export` it may if the caller passed translations of the operators. PyTorch does not tell the model
    about these, but they are an argument of a function on the stack: see docs/adr/0019.
    """
    table = _translations()
    return is_kept_by_trace() if table is None else PLAIN.numbers.forward in table


def is_spelled_out() -> bool:
    """Whether an export has a node for the plain operator alone, so that locations and weights are PyTorch's own."""
    if torch._C._is_tracing():
        return kept_for.get() not in (None, "msdeform")
    table = _translations() or {}
    return PLAIN.numbers.forward in table and FUSED.numbers.forward not in table


# What `torch.compiler.assume_constant_result` does, which would import the compiler: a strict export asks when it is
# made, and does not look inside.
for _function in (is_kept_by_export, is_spelled_out):
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _translations() -> Any:
    """The translations of the `torch.onnx.export` that is going on, empty if it has none; `None` outside of one."""
    frame = sys._getframe()
    while frame is not None:
        if "custom_translation_table" in frame.f_code.co_varnames and _is_of_pytorch(frame.f_globals):
            return frame.f_locals["custom_translation_table"] or {}
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_of_pytorch(names: dict[str, Any]) -> bool:
    module = names.get("__name__")
    return isinstance(module, str) and (module == "torch.onnx" or module.startswith("torch.onnx."))
