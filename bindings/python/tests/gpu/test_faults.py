"""A GPU that faults, and processes forked off one that uses it. Each in a process of its own, which is lost after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PREAMBLE = """
import msdeform, os, torch
from msdeform import _native
from oracle import make_case

case = make_case(device="cuda")

def attend():
    with torch.no_grad():
        return msdeform.ms_deform_attn(case.value, case.shapes, None, case.locations, case.weights)

def told(call):
    try:
        call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(type(error).__module__, str(error).replace("\\n", " "))

levels = [9, 12, 0, 3, 5, 6, 108, 3, 1, 3, 138, 3]
operands = [(tensor.data_ptr(), 0, tuple(tensor.shape), tensor.stride()) for tensor in case.tensors]
stream = torch.cuda.current_stream().cuda_stream

def launch(output):
    "Past PyTorch, whose own allocations and checks fail first where anything is wrong."
    _native.forward(levels, (0, stream), (operands, None), output)

output = attend()
torch.cuda.synchronize()
"""

# The address of the output leads nowhere: nothing is there in any process.
FAULT = """
told(lambda: launch(1 << 30))
told(lambda: launch(output.data_ptr()))
"""


def lines_of(program: str, **environment: str) -> list[str]:
    """What a program prints: the module and the message of every error it was told."""
    variables = {name: value for name, value in os.environ.items() if name != "CUDA_LAUNCH_BLOCKING"}
    variables["PYTHONPATH"] = str(Path(__file__).parents[1])
    finished = subprocess.run(
        [sys.executable, "-c", PREAMBLE + program],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode >= 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines, finished.stderr
    return lines


def test_a_call_after_a_fault_names_the_suspects() -> None:
    lines = lines_of(FAULT)
    assert len(lines) == 2
    # The first call that waits reports the fault. Here PyTorch waits first, then the operator.
    assert "must be restarted" in lines[1]
    assert "newest first: `fwd_" in lines[1]
    assert "CUDA_LAUNCH_BLOCKING=1" in lines[1]


def test_a_launch_that_is_waited_for_is_named_at_the_call() -> None:
    first, second = lines_of(FAULT, CUDA_LAUNCH_BLOCKING="1")
    for line in (first, second):
        assert "must be restarted" in line
        assert "in `fwd_" in line and "another library" not in line


def test_the_fault_of_another_library_is_not_taken_for_ours() -> None:
    program = """
told(lambda: torch.zeros(2, device="cuda")[torch.tensor([99], device="cuda")])
told(lambda: launch(output.data_ptr()))
"""
    # Who waits for every launch looks first whether the GPU has faulted already.
    for blocking in ("0", "1"):
        lines = lines_of(program, CUDA_LAUNCH_BLOCKING=blocking)
        assert len(lines) == 2
        assert "must be restarted" in lines[1]
        assert "perhaps of another library" in lines[1]
        assert "in `fwd_" not in lines[1]


def test_a_forked_process_is_told_that_it_was() -> None:
    program = """
if os.fork() == 0:
    try:
        launch(output.data_ptr())
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
attend()
torch.cuda.synchronize()
print("the parent goes on")
"""
    told, parent = lines_of(program)
    assert "forked" in told and "`spawn`" in told
    assert parent == "the parent goes on"
