"""The operators in processes without Python: packages of AOTInductor and programs in C++."""

from __future__ import annotations

import sys
from pathlib import Path

from . import _native

__all__ = ["library_path"]


def library_path() -> Path:
    """The shared library that gives the operators to the libtorch of a process: the package's own.

    It exports one function, `const char* msdeform_torch_register(void)`, which returns null, or says what is wrong. The
    library of an installed wheel needs no Python; it may be copied to where the program is.
    """
    if sys.platform != "linux":
        raise FileNotFoundError(
            "packages of AOTInductor have been tried on Linux alone. `cargo build --release --package msdeform-torch` "
            "makes a library for another system, under `target/release`"
        )
    return Path(_native.__file__)
