"""What happens when a module is imported."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from typing import Any

__all__ = ["find_elsewhere", "tell_when_loaded", "when_imported"]


def find_elsewhere(
    asked: Any, name: str, path: Sequence[str] | None, target: types.ModuleType | None
) -> ModuleSpec | None:
    """What the other finders find."""
    for finder in list(sys.meta_path):
        find = None if finder is asked else getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


def tell_when_loaded(loader: Any, then: Callable[[types.ModuleType], None]) -> None:
    """Loaders of files are made for one module each, and remain as they are otherwise: others ask them for sources."""
    if not isinstance(loader, (SourceFileLoader, SourcelessFileLoader)) or "exec_module" in vars(loader):
        return

    def exec_module(module: types.ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        loader.exec_module(module)
        then(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


class _Once:
    """A finder that waits for one module, and is gone when it is there."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = find_elsewhere(self, name, path, target)
        if spec is not None:
            tell_when_loaded(spec.loader, self._end)
        return spec

    def _end(self, module: types.ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self.then(module)


def when_imported(name: str, then: Callable[[types.ModuleType], None]) -> None:
    """Does something with a module: now if it is loaded, else as soon as somebody imports it."""
    loaded = sys.modules.get(name)
    if loaded is None:
        sys.meta_path.insert(0, _Once(name, then))
    else:
        then(loaded)
