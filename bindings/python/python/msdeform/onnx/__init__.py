"""Models with the operator as ONNX files: what runs them."""

from __future__ import annotations

from ._library import library_path

__all__ = ["library_path"]
