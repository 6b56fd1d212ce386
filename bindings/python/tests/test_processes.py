"""Threads and processes: how many threads a call uses, calls from many threads at once, and calls after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir() or not hasattr(os, "fork"), reason="needs Linux: forks, and threads by name"
)

# In every program below. The problem is large enough to be shared out to threads.
PREAMBLE = """
import multiprocessing, os, sys, threading, time, warnings
from pathlib import Path
import msdeform
import numpy as np

warnings.simplefilter("ignore", DeprecationWarning)  # These programs fork while threads run.
random = np.random.default_rng(5)
SHAPES = [(24, 31), (12, 16)]
PIXELS = 24 * 31 + 12 * 16
VALUE = random.standard_normal((2, PIXELS, 4, 32)).astype(np.float32)
LOCATIONS = random.random((2, 300, 4, 2, 4, 2)).astype(np.float32)
WEIGHTS = random.random((2, 300, 4, 2, 4)).astype(np.float32)

def attend():
    return msdeform.ms_deform_attn(VALUE, SHAPES, None, LOCATIONS, WEIGHTS)

def of_threads(file):
    "What each thread says of itself; one that ended after it was listed says nothing."
    for task in Path("/proc/self/task").iterdir():
        try:
            yield (task / file).read_text()
        except (FileNotFoundError, ProcessLookupError):
            pass

def workers():
    return sum(name.startswith("msdeform-") for name in of_threads("comm"))

def busy_ticks():
    "Time that worker threads have computed, in hundredths of a second."
    return sum(int(stat.rsplit(")", 1)[1].split()[11]) for stat in of_threads("stat") if "(msdeform-" in stat)

def settle(count):
    "Threads that were told to end take a moment."
    until = time.monotonic() + 20
    while workers() != count and time.monotonic() < until:
        time.sleep(0.01)
    assert workers() == count, (workers(), count)

def ticks_at_rest():
    "What busy_ticks() stays at once the workers sleep, which on a loaded machine takes a moment after their last part."
    ticks, until = -1, time.monotonic() + 20
    while ticks != busy_ticks() and time.monotonic() < until:
        ticks = busy_ticks()
        time.sleep(0.3)
    return ticks

def in_a_fork(work):
    "Runs something in a forked process, which ends as a program does; it must not take a minute."
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
"""

TORCH = """
import torch
from torch.utils.data import DataLoader, Dataset

TENSORS = [torch.from_numpy(array) for array in (VALUE, LOCATIONS, WEIGHTS)]

def attend_tensors():
    return msdeform.ms_deform_attn(TENSORS[0], SHAPES, None, TENSORS[1], TENSORS[2])

def gradients():
    leaves = [tensor.clone().requires_grad_() for tensor in TENSORS]
    output = msdeform.ms_deform_attn(leaves[0], SHAPES, None, leaves[1], leaves[2])
    return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]
"""


def run(program: str, preamble: str = PREAMBLE, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    program = preamble + textwrap.dedent(program)
    finished = subprocess.run(
        [sys.executable, "-c", program], env={**variables, **environment}, capture_output=True, text=True, timeout=170
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def with_torch(program: str, **environment: str) -> str:
    pytest.importorskip("torch")
    return run(program, PREAMBLE + TORCH, **environment)


def test_arrays_are_shared_out_to_as_many_threads_as_openmp_may_have() -> None:
    program = """
        attend()
        settle(int(os.environ["WORKERS"]))
    """
    run(program, OMP_NUM_THREADS="3", WORKERS="3")
    # OpenMP's own form: a number for each level of nesting.
    run(program, OMP_NUM_THREADS="4,2", WORKERS="4")
    # One thread is the caller's.
    run(program, OMP_NUM_THREADS="1", WORKERS="0")


def test_arrays_are_shared_out_to_the_cores_that_the_process_may_run_on() -> None:
    program = """
        from msdeform import _array

        cores = sorted(os.sched_getaffinity(0))
        assert _array._threads() == len(cores)
        os.sched_setaffinity(0, cores[:1])
        for nonsense in ("", "many", "0", "-2"):
            os.environ["OMP_NUM_THREADS"] = nonsense
            assert _array._threads() == 1, nonsense
        attend()
        time.sleep(0.2)
        settle(0)
    """
    run(program)


def test_tensors_follow_set_num_threads_from_call_to_call() -> None:
    with_torch("""
        torch.set_num_threads(1)
        expected = attend_tensors()
        settle(0)
        for threads in (3, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(attend_tensors(), expected)
            settle(threads)
            assert all(torch.equal(a, b) for a, b in zip(gradients(), gradients()))
        # Threads of the last number may stay, asleep.
        torch.set_num_threads(1)
        before = ticks_at_rest()
        for _ in range(20):
            assert torch.equal(attend_tensors(), expected)
        assert busy_ticks() == before
    """)


CALLERS = """
    expected = call()
    barrier, wrong = threading.Barrier(8), []

    def caller(index):
        barrier.wait()
        for turn in range(6):
            found = call()
            same = all(np.array_equal(a, b) for a, b in zip(found, expected))
            if not same:
                wrong.append((index, turn))

    callers = [threading.Thread(target=caller, args=(index,)) for index in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(120)
        assert not thread.is_alive(), "a caller hangs"
    assert not wrong, wrong
"""


def test_arrays_from_eight_threads_at_once_have_the_same_bits() -> None:
    program = "call = lambda: [attend()]\n" + textwrap.dedent(CALLERS)
    run(program, OMP_NUM_THREADS="3")


def test_tensors_from_eight_threads_at_once_have_the_same_bits() -> None:
    program = "call = lambda: [tensor.numpy() for tensor in gradients()]\n" + textwrap.dedent(CALLERS)
    with_torch("torch.set_num_threads(3)\n" + program, OMP_NUM_THREADS="3")


def test_other_threads_of_python_run_during_a_call() -> None:
    # The reference (float64) is slow: without the lock released, the other thread would count nothing meanwhile.
    run("""
        sys.setswitchinterval(0.001)
        arrays = [array.astype(np.float64).repeat(3, axis=0) for array in (VALUE, LOCATIONS, WEIGHTS)]
        turns = [0]

        def count():
            while not stop.is_set():
                turns[0] += 1
                time.sleep(0.0005)

        stop = threading.Event()
        counter = threading.Thread(target=count)
        counter.start()
        time.sleep(0.05)
        before, start = turns[0], time.monotonic()
        msdeform.ms_deform_attn(arrays[0], SHAPES, None, arrays[1], arrays[2])
        counted, seconds = turns[0] - before, time.monotonic() - start
        stop.set()
        counter.join()
        assert seconds < 0.02 or counted >= 5, (counted, seconds)
        print(counted, seconds)
    """)


@pytest.mark.parametrize("before", ["attend()", "pass"], ids=["used before", "not used before"])
def test_arrays_in_a_forked_process(before: str) -> None:
    run(
        f"""
        {before}
        expected = attend() if {before == "attend()"} else None

        def work():
            found = attend()
            assert expected is None or np.array_equal(found, expected)
            settle(3)

        for _ in range(5):
            in_a_fork(work)
        in_a_fork(lambda: None)
        in_a_fork(lambda: in_a_fork(work))
        assert attend() is not None
    """,
        OMP_NUM_THREADS="3",
    )


def test_a_fork_while_other_threads_compute() -> None:
    run(
        """
        expected = attend()
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                attend()

        threads = [threading.Thread(target=busy) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                in_a_fork(lambda: np.testing.assert_array_equal(attend(), expected))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    """,
        OMP_NUM_THREADS="3",
    )


def test_tensors_in_processes_that_multiprocessing_forks() -> None:
    with_torch(
        """
        expected = attend_tensors()

        def work(queue):
            torch.set_num_threads(2)
            queue.put(bool(torch.equal(attend_tensors(), expected)))

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        children = [context.Process(target=work, args=(queue,)) for _ in range(3)]
        for child in children:
            child.start()
        assert [queue.get(timeout=60) for _ in children] == [True] * 3
        for child in children:
            child.join(60)
            assert child.exitcode == 0, child.exitcode
    """,
        OMP_NUM_THREADS="2",
    )


def test_tensors_in_workers_of_a_data_loader() -> None:
    with_torch(
        """
        expected = attend_tensors()

        class Calls(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                return attend_tensors()

        loader = DataLoader(Calls(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
        batches = list(loader)
        assert len(batches) == 4
        assert all(torch.equal(output, expected) for batch in batches for output in batch)
    """,
        OMP_NUM_THREADS="3",
    )


def test_benchmarks_run_in_a_forked_process_too() -> None:
    run("""
        def bench():
            found = msdeform.bench("ddetr_dec", device="cpu", seconds=0.0)
            assert found["passed"], found

        bench()
        in_a_fork(bench)
    """)


def test_facts_of_the_machine_in_a_forked_process() -> None:
    run("""
        before = msdeform.device_info()

        def work():
            now = msdeform.device_info()
            assert now["cpu"] == before["cpu"], now
            # A driver that was used before the fork serves its child no more, and that is a fact of the child.
            if before["cuda"]["driver"]:
                assert now["cuda"]["driver"] is None and now["cuda"]["gpus"] == [], now
                assert "forked" in now["cuda"]["missing"], now
            else:
                assert now == before, now

        in_a_fork(work)
    """)
