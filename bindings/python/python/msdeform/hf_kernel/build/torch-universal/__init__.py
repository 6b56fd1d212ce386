"""msdeform as a kernel of the `kernels` package."""

from . import layers

__all__ = ["layers"]
