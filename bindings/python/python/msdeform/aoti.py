"""The operators in processes without Python: packages of AOTInductor and programs in C++."""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> Path:
    """The shared library that gives the operators to the libtorch of a process.

    It exports one function, `const char* msdeform_torch_register(void)`, which returns null, or says what is wrong. The
    library needs no Python; it may be copied to where the program is.
    """
    found = Path(__file__).with_name("libmsdeform_torch.so")
    if not found.is_file():
        raise FileNotFoundError(
            f"{found} is missing: this is no installed wheel. `cargo build --release --package msdeform-torch` makes "
            "it, under `target/release`"
        )
    return found
