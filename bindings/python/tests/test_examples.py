"""The examples and the README run as they are typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).resolve().parents[1]
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def run(*arguments: str) -> str:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, cwd=PACKAGE
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_swapping_into_a_transformers_model() -> None:
    pytest.importorskip("transformers")
    assert "places replaced" in run("examples/swap_into_transformers.py")


def test_training_makes_the_loss_fall() -> None:
    said = run("examples/train_encoder.py", "40")
    first, last = map(float, re.findall(r"loss (\d\.\d+) -> (\d\.\d+)", said)[0])
    assert last < 0.9 * first, said


def test_exporting() -> None:
    said = run("examples/export_layer.py")
    assert "msdeform.ms_deform_attn" in said and "loaded: ExportedProgram" in said, said


# PyTorch's DTensor keeps a group that was destroyed, and gloo's threads with it. One that drops its last tensor while
# the interpreter is taken down ends the process by `std::terminate`: leave without that, as forked processes do.
RUN_AND_LEAVE = (
    "import os, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__'); sys.stdout.flush(); os._exit(0)"
)


@pytest.mark.skipif(TORCH < (2, 6), reason="torch 2.6 has sharding rules first")
def test_distributed() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    said = run(*torchrun, sys.executable, "-c", RUN_AND_LEAVE, "examples/distributed.py")
    assert said.count("difference") == 3, said


@pytest.mark.parametrize("readme", [PACKAGE / "README.md", PACKAGE.parents[1] / "README.md"], ids=["package", "root"])
def test_python_in_the_readme_runs_as_typed(readme: Path) -> None:
    if not readme.is_file():
        pytest.skip("not in a checkout")
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(), flags=re.DOTALL)
    assert blocks, f"no Python in {readme}"
    for block in blocks:
        exec(compile(block, str(readme), "exec"), {})
