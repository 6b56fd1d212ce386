"""ONNX: models with this package's operators as files that other programs run.

`table(target)` is what `torch.onnx.export(..., dynamo=True, custom_translation_table=...)` takes, `exporting(target)` a
context for the exporter by TorchScript and for `torch.export`. Both say which nodes a call becomes. `library_path()` is
what ONNX Runtime's `register_custom_ops_library` takes, to run them. `rewrite` turns the attention of a model that
somebody else exported into another form, `inspect` lists where it is.

Nothing of `onnx`, `onnxscript`, `onnxruntime` or PyTorch is imported before one of them is called.
"""

from __future__ import annotations

from .. import _native
from ._export import TARGETS, exporting, table
from ._rewrite import RewriteReport, inspect, rewrite

__all__ = ["TARGETS", "RewriteReport", "exporting", "inspect", "library_path", "rewrite", "table"]


def library_path() -> str:
    """The path for `onnxruntime.SessionOptions.register_custom_ops_library`.

    The library is the package's own, so there is nothing else to install, and it only loads in a process that runs
    Python. It has `MSDeformAttn` and `MSDeformAttnFromOffsets` (domain `msdeform`), mmdeploy's
    `MMCVMultiScaleDeformableAttention` (domain `mmdeploy`) and, as TensorRT's plugin takes it,
    `MultiscaleDeformableAttnPlugin_TRT` (domain `trt.plugins`), for the CPU provider of ONNX Runtime 1.17 and newer.
    """
    file = _native.__file__
    if file is None:
        raise RuntimeError("`msdeform._native` was not loaded from a file; install the package from its wheel")
    return file
