"""Multi-scale deformable attention in ONNX models."""

from ._rewrite import RewriteReport, inspect, rewrite

__all__ = ["RewriteReport", "inspect", "rewrite"]
