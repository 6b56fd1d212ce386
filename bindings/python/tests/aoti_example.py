"""The example of AOTInductor as its page has it, to a process without Python; on the CPU or on a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
EXAMPLE = PACKAGE / "examples" / "aoti"
PAGE = PACKAGE / "docs" / "aoti.md"


def commands_of_the_page(device: str) -> list[str]:
    """What a reader types, a line for each command, with what the page says of GPUs."""
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    commands: list[str] = block.replace("\\\n", " ").splitlines()
    assert [command.split()[0].split("=")[0] for command in commands] == ["python", "torch", "g++", "./decoder"]
    if device == "cpu":
        return commands
    export, root, build, run_it = commands
    build = build.replace(" -lc10 ", " -ltorch_cuda -lc10_cuda -lc10 ")
    return [f"{export} {device}", root, build, f"{run_it} {device}"]


def with_this_python(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which `python` is the one that runs the tests."""
    return {**environment, "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}


def run_example(folder: Path, device: str) -> tuple[str, str]:
    """What the export and the program have said."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    # Compiled for one run: nothing here is worth optimising.
    environment = {
        **os.environ,
        "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "CXX": compiler,
    }
    export, root, build, run_it = commands_of_the_page(device)
    for name in ("export.py", "main.cpp"):
        shutil.copy(EXAMPLE / name, folder)
    typed: dict[str, Any] = {"cwd": folder, "text": True}
    # Both at once.
    building = subprocess.Popen(
        ["sh", "-ec", f"{root}\n{build.replace('g++', compiler, 1)}"],
        env=with_this_python(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **typed,
    )
    exported = subprocess.run(
        ["sh", "-ec", export], env=with_this_python(environment), capture_output=True, timeout=600, **typed
    )
    said, _ = building.communicate(timeout=600)
    assert building.returncode == 0, said
    assert exported.returncode == 0, exported.stdout + exported.stderr
    bare = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    run = subprocess.run(["sh", "-ec", run_it], env=with_this_python(bare), capture_output=True, timeout=300, **typed)
    assert run.returncode == 0, run.stdout + run.stderr
    for expected in ("without Python", "layer: largest", "called: largest", "refused: `levels` has 7 numbers"):
        assert expected in run.stdout, run.stdout
    return exported.stdout, run.stdout
