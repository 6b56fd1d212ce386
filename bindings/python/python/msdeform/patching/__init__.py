"""Lets existing models use this operator, at run time.

`patch()` replaces a function only if its name and its parameters are known, and if a small random call gives the same
outputs and gradients before and after. It leaves all other functions alone and records the reason. It patches loaded
modules at once and other modules when they are imported, so it imports no framework itself.
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
    """Makes existing models use `msdeform`, both loaded models and models that are imported later.

    Args:
        framework: a name or several of `"transformers"`, `"ultralytics"`, `"rfdetr"`, `"libreyolo"`, `"rtdetr"`,
            `"mmcv"` (`"mmdet"` is the same), `"groundingdino"`; `"detr"` for the published functions of RT-DETR 1 and
            2, D-FINE and DEIM in any module; `"detectron2"` (`"detrex"` is the same) for all packages built on
            `MSDeformAttnFunction` (Deformable-DETR, DINO, Mask2Former, detrex). If the extension
            `MultiScaleDeformableAttention` is not installed, `"detectron2"` also provides a stand-in, so that these
            packages load. `None`: all names, with the stand-in only if detectron2 or detrex is installed.
        fuse: also replaces whole attention layers by the fused operator, if their version is known and the device has a
            kernel for it. This takes fewer steps and rounds no coordinates to half precision. `False`: functions alone.

    Returns:
        A list with the names that this call replaced. The list grows as models are imported. It is also a context
        manager (`with msdeform.patch() as names:`), whose end undoes this call.

    The call also changes models that exist already, and `torch.compile` then compiles its functions again. Inside of an
    export (ONNX, TorchScript, `torch.export`) a patched model computes like the original, so the exported model does
    not need this package. `msdeform.onnx` keeps the operator in an export.
    """
    packages = _chosen(framework)
    application = replacing.Application(packages, fuse)
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
    """The full names of all functions and layers that are replaced at the moment.

    With `verbose=True` the list also has functions and layers that were left alone. Each entry is then a `Place` with
    `name`, `is_replaced`, `reason`, and `is_layer` for whole layers.
    """
    places = replacing.places()
    return places if verbose else [place.name for place in places if place.is_replaced]


def unpatch() -> list[str]:
    """Restores all originals; returns the names of the restored functions."""
    names = patched()
    while replacing.applications:
        replacing.applications[-1].close()
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
    except (ImportError, ValueError):  # A module without a specification, as tests and notebooks create.
        return True
