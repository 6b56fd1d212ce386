"""The library of custom operators that ONNX Runtime loads."""

from __future__ import annotations

from .. import _native

__all__ = ["library_path"]


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
