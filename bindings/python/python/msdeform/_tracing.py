"""Whether PyTorch is tracing, and for what purpose."""

from __future__ import annotations

import sys
import warnings
from contextvars import ContextVar
from typing import Any

import torch

from ._operators import PLAIN


def is_traced() -> bool:
    """Whether the call becomes part of a graph, which other sizes may go through later."""
    return bool(torch.compiler.is_compiling() or torch._C._is_tracing())


def is_exported() -> bool:
    """Whether what is being compiled is an export.

    Not `torch.compiler.is_exporting()`, only what it reads: in PyTorch 2.11, among others, `torch.compile` takes
    that function for true wherever it meets it. Before 2.7 there is neither, and a strict export is not told from
    `torch.compile`.
    """
    if _has_flag:
        return bool(torch.compiler._is_exporting_flag)
    return not torch.compiler.is_dynamo_compiling()


_has_flag = hasattr(torch.compiler, "_is_exporting_flag")


def plain_number(size: Any) -> Any:
    """A size that is part of the model. `torch.jit.trace` hands sizes out as tensors, which would stay variable."""
    if not isinstance(size, torch.Tensor):
        return size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return int(size)


# The target of `msdeform.onnx.exporting`, inside of it.
kept_for: ContextVar[str | None] = ContextVar("kept_for", default=None)


def is_kept_by_trace() -> bool:
    """Whether what TorchScript traces may have this package's operators in it."""
    return kept_for.get() is not None


def is_kept_by_export() -> bool:
    """Whether what `torch.export` gives may have this package's operators in it.

    In `torch.onnx.export` it may if that was given translations of them. Nothing in PyTorch tells a model of these, but
    they are an argument of a function that is being called: see docs/adr/0019.
    """
    frame = sys._getframe()
    while frame is not None:
        if "custom_translation_table" in frame.f_code.co_varnames and _is_of_pytorch(frame.f_globals):
            table = frame.f_locals["custom_translation_table"]
            return table is not None and PLAIN.numbers.forward in table
        frame = frame.f_back  # type: ignore[assignment]
    return is_kept_by_trace()


# What `torch.compiler.assume_constant_result` does, which would import the compiler: a strict export asks when it is
# made, and does not look inside.
is_kept_by_export._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_of_pytorch(names: dict[str, Any]) -> bool:
    module = names.get("__name__")
    return isinstance(module, str) and (module == "torch.onnx" or module.startswith("torch.onnx."))
