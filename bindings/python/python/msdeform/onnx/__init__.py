"""ONNX: models with this package's operators as files that other programs run.

- `table(target)` returns translations for `torch.onnx.export(..., dynamo=True, custom_translation_table=...)`.
- `exporting(target)` is a context for the exporter by TorchScript and for `torch.export`.
- `library_path()` returns the library for `register_custom_ops_library` of ONNX Runtime.
- `inspect` lists the attention in an exported model, and `rewrite` changes its form.
- `check` runs the attention in the runtimes of this machine and compares it with the reference.

This module imports `onnx`, `onnxscript`, `onnxruntime` and PyTorch only when one of these functions is called.
"""

from __future__ import annotations

from .. import _native
from ._check import CheckReport, CheckRow, check
from ._export import TARGETS, exporting, table
from ._rewrite import RewriteReport, inspect, rewrite

__all__ = [
    "TARGETS",
    "CheckReport",
    "CheckRow",
    "RewriteReport",
    "check",
    "exporting",
    "inspect",
    "library_path",
    "rewrite",
    "table",
]


def library_path() -> str:
    """The path for `onnxruntime.SessionOptions.register_custom_ops_library`.

    The library is part of this package, so you install nothing else. On Linux it also loads in processes that do not
    run Python, such as programs in C++ and Rust. It has `MSDeformAttn` and `MSDeformAttnFromOffsets` (domain
    `msdeform`), mmdeploy's `MMCVMultiScaleDeformableAttention` (domain `mmdeploy`) and, with the signature of
    TensorRT's plugin, `MultiscaleDeformableAttnPlugin_TRT` (domain `trt.plugins`), for the CPU provider of ONNX
    Runtime 1.17 and newer.
    """
    file = _native.__file__
    if file is None:
        raise RuntimeError("`msdeform._native` was not loaded from a file; install the package from its wheel")
    return file
