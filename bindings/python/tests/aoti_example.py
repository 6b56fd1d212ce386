"""The example of AOTInductor, from the export to a process without Python; on the processor or on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "aoti"


def run_example(folder: Path, library: Path, device: str) -> tuple[str, str]:
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
    root = Path(torch.__file__).parent
    on_gpu = ["-ltorch_cuda", "-lc10_cuda"] if device == "cuda" else []
    build = [
        *(compiler, "-std=c++20", "-O0", "-o", str(folder / "decoder"), str(EXAMPLE / "main.cpp")),
        *("-isystem", str(root / "include"), f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"),
        *("-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", *on_gpu, "-lc10", "-ldl"),
    ]
    # Both at once.
    building = subprocess.Popen(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    exported = subprocess.run(
        [sys.executable, str(EXAMPLE / "export.py"), str(folder), device],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said, _ = building.communicate(timeout=600)
    assert building.returncode == 0, said
    assert exported.returncode == 0, exported.stdout + exported.stderr
    bare = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    words = [str(folder / "decoder"), str(folder), str(library), device]
    run = subprocess.run(words, env=bare, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    for expected in ("without Python", "layer: largest", "called: largest", "refused: `levels` has 7 numbers"):
        assert expected in run.stdout, run.stdout
    return exported.stdout, run.stdout
