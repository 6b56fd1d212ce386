"""The operators in processes without Python: packages of AOTInductor and programs in C++."""

from __future__ import annotations

import sys
from pathlib import Path

from . import _native

__all__ = ["library_path"]


def library_path() -> Path:
    """The path of the shared library that registers the operators in the libtorch of a process.

    The library exports one function, `const char* msdeform_torch_register(void)`, which returns null or an error
    message. It is part of the wheel, needs no Python, and may be copied into the program's folder.
    """
    if sys.platform != "linux":
        raise FileNotFoundError(
            f"found {sys.platform}; the wheel's library for AOTInductor was tested on Linux alone. In a checkout, "
            "`cargo build --release --package msdeform-torch` builds one under `target/release`"
        )
    return Path(_native.__file__)
