"""Several processes on one machine give what one gives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def run(what: str, world: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    worker = Path(__file__).with_name("distributed_worker.py")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    finished = subprocess.run(
        [sys.executable, str(worker), what, str(port), str(world)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    for rank in range(world):
        assert f"rank {rank} of {world} done" in finished.stdout, finished.stdout


@pytest.mark.parametrize("world", [2, 4])
def test_processes_together_give_what_one_gives(world: int) -> None:
    """Training steps of data parallel processes; from torch 2.6 on also tensors sharded by images, queries or heads."""
    run("training" if TORCH < (2, 6) else "all", world)
