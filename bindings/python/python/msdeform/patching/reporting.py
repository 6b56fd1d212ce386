"""Warnings that point at the line of the caller or the import."""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IMPORTLIB = os.path.dirname(os.path.abspath(importlib.__file__)) + os.sep

# Code of this package that names a file of another package as its source.
own_code: set[types.CodeType] = set()


def warn(message: str, folder: str | None = None) -> None:
    """Warns at the first line that is neither this package's nor the import system's, nor below `folder`."""
    folders = (_OWN, _IMPORTLIB, "<frozen importlib", *(() if folder is None else (folder + os.sep,)))
    frame = sys._getframe()
    while frame.f_back is not None and (frame.f_code in own_code or frame.f_code.co_filename.startswith(folders)):
        frame = frame.f_back
    # Not by a level: `warnings.warn` leaves out frames of the import system, and then ends up at "sys:1".
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
    )
