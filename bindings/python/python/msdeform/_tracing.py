"""Whether PyTorch is watching."""

from __future__ import annotations

import torch

__all__ = ["is_traced"]


def is_traced() -> bool:
    """Whether the call becomes part of a graph, which other sizes may go through later."""
    return bool(torch.compiler.is_compiling() or torch._C._is_tracing())
