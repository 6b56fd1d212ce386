"""Patches modules when they are imported.

A finder at the head of `sys.meta_path` asks the other finders and makes the loader call `scan` after it has loaded a
module. It never makes an import fail that would work without it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from .._imports import Finder
from . import replacing
from .reporting import warn

# Modules that are never patched; most imports are among them.
_OTHERS = frozenset(sys.stdlib_module_names) | {"torch", "torchvision", "numpy", "triton", "sympy", "msdeform", "scipy"}


def _is_wanted(name: str) -> bool:
    return name.partition(".")[0] not in _OTHERS and replacing.is_wanted(name)


def _patch_loaded(module: types.ModuleType) -> None:
    try:
        replacing.scan(module)
    except Exception as error:
        warn(f"msdeform leaves {module.__name__} alone: {type(error).__name__}: {error}")


# Watches imports while anything may have to be replaced.
_FINDER: Any = Finder(_is_wanted, _patch_loaded)


def watch(application: replacing.Application) -> None:
    """Watches imports until this and all other applications are closed."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    application.undo.append(_rest)


def _rest() -> None:
    if not replacing.applications and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def loaded() -> Iterator[types.ModuleType]:
    """Loaded modules, without the other objects that some programs put into `sys.modules`."""
    for name, module in list(sys.modules.items()):
        is_other = name.partition(".")[0] in _OTHERS
        if isinstance(module, types.ModuleType) and not is_other and vars(module).get("__name__") == name:
            yield module
