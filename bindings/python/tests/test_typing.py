"""The types of the package as its users see them: typed_user.py under the two checkers that people run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USER = Path(__file__).with_name("typed_user.py")


def check(folder: Path, *arguments: str) -> None:
    """Runs a checker in a folder of its own, where it finds no settings but ours."""
    shutil.copy(USER, folder)
    finished = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_mypy_in_strict_mode(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    check(tmp_path, "mypy", "--strict", "--python-version=3.10", USER.name)


def test_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    settings = {
        "include": [USER.name],
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    check(tmp_path, "pyright", "--pythonpath", sys.executable)
