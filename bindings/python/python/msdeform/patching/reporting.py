"""Warnings that point at the line of whoever called or imported."""

from __future__ import annotations

import os
import sys
import warnings

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn(message: str, beside: str | None = None) -> None:
    """Warns at the first line that is neither this package's nor the import system's, nor of the folder `beside`."""
    folders = (_OWN,) if beside is None else (_OWN, beside + os.sep)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_within(frame.f_code.co_filename, folders):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_within(filename: str, folders: tuple[str, ...]) -> bool:
    return filename.startswith((*folders, "<frozen importlib"))
