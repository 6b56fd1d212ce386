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
    processes = []
    for rank in range(world):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, str(worker), what]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=300)[0])
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, said, strict=True)):
        assert process.returncode == 0, f"rank {rank} of {world}:\n{output}"


@pytest.mark.parametrize("world", [2, 4])
def test_processes_together_give_what_one_gives(world: int) -> None:
    """Training steps of data parallel processes; from torch 2.6 on also tensors sharded by images, queries or heads.
    One start of the processes for both: importing PyTorch is what takes the time."""
    run("training" if TORCH < (2, 6) else "all", world)
