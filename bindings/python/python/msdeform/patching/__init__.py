"""Lets models that exist use this operator, at run time.

A function is replaced only where its call is known: by its name, by the names of its parameters, and by a small random
call that it and its replacement must answer alike, outputs and gradients. Everything else is left alone, with a reason.
Modules that are loaded are patched at once and others when they are imported, so nothing is imported for it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Literal, overload

from . import importing, replacing
from .data import Package
from .extension import provide_extension
from .packages import PACKAGES
from .replacing import Patch, Place
from .reporting import warn

__all__ = ["Patch", "Place", "patch", "patched", "unpatch"]


def patch(framework: str | Iterable[str] | None = None, *, fuse: bool = True) -> Patch:
    """Makes existing models use `msdeform`, those that are loaded and those that are imported later.

    Args:
        framework: a name or several of `"transformers"`, `"ultralytics"`, `"rfdetr"`, `"libreyolo"`, `"rtdetr"`,
            `"mmcv"` (`"mmdet"` is the same), `"groundingdino"`; `"detr"` for the published functions of RT-DETR 1 and
            2, D-FINE and DEIM wherever they are loaded; `"detectron2"` (`"detrex"` is the same) for everything built on
            `MSDeformAttnFunction` (Deformable-DETR, DINO, Mask2Former, detrex) and, where the extension
            `MultiScaleDeformableAttention` is not installed, a stand-in for it, so that they load at all. `None`: all
            of these, and the stand-in only where detectron2 or detrex is installed.
        fuse: also replaces whole attention layers by the operator from offsets, where their version is known and the
            device has it in one pass: fewer steps, and no coordinates in half precision. `False`: functions alone.

    Returns:
        The names of what this call replaced, a list. It grows as models are imported. As a context manager
        (`with msdeform.patch() as names:`) it undoes at its end what this call did.

    Models that exist already are changed too, and `torch.compile` compiles again what it has compiled. Inside of an
    export (ONNX, TorchScript, `torch.export`) a patched model computes as it did before, so that what is exported needs
    nothing of this package; `msdeform.onnx` makes it keep the operator.
    """
    packages = _chosen(framework)
    application = replacing.open_application(packages, fuse)
    importing.watch(application)
    for module in importing.loaded():
        replacing.scan(module, only=application)
    if application.names:
        replacing.forget_compiled()
    if any(_needs_extension(package, is_named=framework is not None) for package in packages):
        provide_extension(application)
    if framework is not None:
        for package in packages:
            if not package.is_anywhere and not any(_is_installed(name) for name in package.tops):
                warn(f'nothing to patch for "{package.name}": it is not installed')
    return application.names


@overload
def patched(verbose: Literal[False] = False) -> list[str]: ...


@overload
def patched(verbose: Literal[True]) -> list[Place]: ...


def patched(verbose: bool = False) -> list[str] | list[Place]:
    """What is replaced at the moment, by its full name.

    With `verbose=True` also what was found and left alone: each a `Place` with its `name`, whether it `is_replaced`,
    the `reason`, and whether it `is_layer`, a whole one.
    """
    return replacing.places() if verbose else replacing.names()


def unpatch() -> list[str]:
    """Puts everything back as it was; returns what was put back."""
    names = replacing.names()
    replacing.close_all()
    return names


def _chosen(framework: str | Iterable[str] | None) -> tuple[Package, ...]:
    if framework is None:
        return tuple(PACKAGES)
    wanted = [framework] if isinstance(framework, str) else list(framework)
    found = []
    for name in wanted:
        package = next((package for package in PACKAGES if name in (package.name, *package.aliases)), None)
        if package is None:
            known = ", ".join(f'"{package.name}"' for package in PACKAGES)
            raise ValueError(f'unknown framework "{name}"; known: {known}')
        found.append(package)
    return tuple(found)


def _needs_extension(package: Package, is_named: bool) -> bool:
    return package.takes_extension and (is_named or any(_is_installed(name) for name in package.tops))


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # Loaded without a specification, as tests and notebooks make modules.
        return True
