"""ONNX: models with this package's operators as files that other programs run.

`table(target)` is what `torch.onnx.export(..., dynamo=True, custom_translation_table=...)` takes, `exporting(target)` a
context for the exporter by TorchScript and for `torch.export`. Both say which nodes a call becomes. `library_path()` is
what ONNX Runtime's `register_custom_ops_library` takes, to run them. `rewrite` turns the attention of a model that
somebody else exported into another form, `inspect` lists where it is.

Nothing of `onnx`, `onnxscript`, `onnxruntime` or PyTorch is imported before one of them is called.
"""

from __future__ import annotations

from ._export import TARGETS, exporting, table
from ._library import library_path
from ._rewrite import RewriteReport, inspect, rewrite

__all__ = ["TARGETS", "RewriteReport", "exporting", "inspect", "library_path", "rewrite", "table"]
