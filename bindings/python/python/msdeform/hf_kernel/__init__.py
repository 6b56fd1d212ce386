"""A local kernel for the `kernels` package of Hugging Face: `PATH` is its folder.

Models of transformers load it by `use_kernels=True` with a `KernelConfig` that names the folder, in place of the one
that they would download. It compiles nothing and has one variant for all versions and devices.
"""

from pathlib import Path

__all__ = ["PATH"]

PATH = Path(__file__).resolve().parent
