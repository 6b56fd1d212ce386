"""Calls a function when a module is imported."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from typing import Any


def _tell_when_loaded(loader: Any, then: Callable[[types.ModuleType], None]) -> None:
    """Makes a file loader call `then` after it has loaded its module. A file loader belongs to one module.

    The loader stays the same object, because other code asks it for sources.
    """
    if not isinstance(loader, (SourceFileLoader, SourcelessFileLoader)) or "exec_module" in vars(loader):
        return

    def exec_module(module: types.ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        loader.exec_module(module)
        then(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


class Finder:
    """A finder that asks the other finders, and makes the loader call a function with the module."""

    def __init__(self, is_wanted: Callable[[str], bool], then: Callable[[types.ModuleType], None]) -> None:
        self.is_wanted, self.then = is_wanted, then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.is_wanted(name):
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                _tell_when_loaded(spec.loader, self.then)
                return spec
        return None


def when_imported(name: str, then: Callable[[types.ModuleType], None]) -> None:
    """Calls `then` with a module: at once if it is loaded, else when it is imported."""

    def end(module: types.ModuleType) -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        then(module)

    loaded = sys.modules.get(name)
    finder: Any = Finder(lambda asked: asked == name, end)
    if loaded is None:
        sys.meta_path.insert(0, finder)
    else:
        then(loaded)
