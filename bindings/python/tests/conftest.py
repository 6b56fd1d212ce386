"""What tests share. Tests that need what this machine lacks are skipped, and counted as such."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from surroundings import HAS_TORCH, MADE_UP

# Some virtual machines announce AMX and do not have it: PyTorch's own half precision products then end the process
# with an illegal instruction. Read when PyTorch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# PyTorch's threads spin while they wait. With two processes of tests on two cores, small models then take twenty times
# as long. Read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if not HAS_TORCH:
    # A plain installation: all but these import PyTorch at the top. What is left must pass with NumPy alone.
    without_torch = {"test_facts.py", "test_first_look.py", "test_numpy.py", "test_processes.py"}
    tests = {file.name for file in Path(__file__).parent.glob("test_*.py")}
    collect_ignore_glob = ["gpu", "gpu/*", *(tests - without_torch)]


@pytest.fixture(autouse=True)
def _nothing_stays_patched() -> Iterator[None]:
    """A module that one test leaves behind would be patched in the next."""
    yield
    if HAS_TORCH:
        import msdeform

        msdeform.unpatch()
        for name in [name for name in sys.modules if name.startswith(MADE_UP)]:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    if HAS_TORCH:
        import torch

        torch.manual_seed(20)
