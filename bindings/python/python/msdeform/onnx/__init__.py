"""ONNX: models with this package's operators as files that other programs run.

`library_path()` is what ONNX Runtime's `register_custom_ops_library` takes. `rewrite` turns the attention of a model into
another form, `inspect` lists where it is.
"""

from __future__ import annotations

from ._library import library_path
from ._rewrite import RewriteReport, inspect, rewrite

__all__ = ["RewriteReport", "inspect", "library_path", "rewrite"]
