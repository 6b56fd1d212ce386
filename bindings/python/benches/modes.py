"""How a pass is run: eager, compiled, or as a CUDA graph. Each gives a step for the unpatched and one for the patched
model, warmed up.

A CUDA graph and, less so, a compiled model spare the host: they show what the patch saves where a slow host hides it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from passes import Step, Switch, count_calls, make_step
from torch import Tensor
from torch.overrides import TorchFunctionMode
from zoo import Model

# What `torch.compile` uses, and how long it may take for one model, before or after.
BACKEND = "inductor"
LIMIT_S = 300

EVERY_FORMAT = ("f32", "f16", "bf16")
# By device and mode: which passes, in which formats. Compiling takes minutes, so one format must do; training is not
# captured because an optimizer and a loss would be part of what is captured in practice.
PLAN: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "cuda": {
        "eager": (("inference", "training"), EVERY_FORMAT),
        "graph": (("inference",), EVERY_FORMAT),
        "compiled": (("inference",), ("bf16",)),
    },
    "cpu": {
        "eager": (("inference", "training"), ("f32", "bf16")),
        "compiled": (("inference",), ("f32",)),
    },
}


class LeftOut(Exception):
    """Why there are no figures. A fault is one of the patched model alone."""

    def __init__(self, reason: str, is_fault: bool) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


def make_steps(
    mode: str, network: Any, model: Model, pixels: Tensor, work: str, dtype: str, switch: Switch, scale: float
) -> dict[bool, Step]:
    """Steps without and with the patch; `scale` is that of the loss.

    Raises:
        LeftOut: the model cannot be run in this mode.
    """
    if mode in model.left_out:
        raise LeftOut(model.left_out[mode], is_fault=False)
    torch._dynamo.reset()  # Before: other models through the same code, of which it keeps eight.
    # One for each side, for PyTorch keeps what it compiled by code.
    calls: dict[bool, Callable[[Tensor], Any]] = {
        False: lambda pixels: network(pixels),
        True: lambda pixels: network(pixels),
    }
    steps: dict[bool, Step] = {}
    for is_patched, call in calls.items():
        switch.set(is_patched)
        try:
            with _time_limit(LIMIT_S if mode == "compiled" else 0):
                if mode == "compiled":
                    call = torch.compile(call, backend=BACKEND, dynamic=False)
                step = make_step(model, call, pixels, work, dtype)
                step(scale)
                used = count_calls(lambda step=step: step(scale))
                if mode == "graph":
                    step, used = _capture(step, scale)
        except (Exception, _TooLong) as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            # What works without the patch must work with it, and a model as it is in any case.
            is_fault = is_patched or mode == "eager"
            raise LeftOut(f"{'after' if is_patched else 'before'}: {said[:160]}", is_fault) from error
        if (used > 0) != is_patched:
            raise LeftOut(f"{'after' if is_patched else 'before'}: {used} calls of the operator", is_fault=True)
        steps[is_patched] = step
    return steps


class _TooLong(BaseException):
    """Not an `Exception`: compilers catch those, and go on."""


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Breaks off after so long; 0 for ever. Only the main thread can be interrupted."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooLong(f"not compiled after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _capture(step: Step, scale: float) -> tuple[Step, int]:
    """The pass as a graph, and how often the operator is in it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    constants = Constants()
    with torch.cuda.stream(stream):
        step(scale)
        with constants:
            step(scale)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    outputs: list[Tensor] = []

    def capture() -> None:
        # Other threads, the profiler's among them, may do what they like.
        with constants.again(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs.append(step(scale))

    used = count_calls(capture)

    def replay(_: float, _read: Constants = constants) -> Tensor:
        # The graph reads the constants where they are: they live as long as it does.
        graph.replay()
        return outputs[0]

    return replay, used


class Constants(TorchFunctionMode):
    """Keeps the tensors that a model makes of numbers, as those of its levels' shapes, and gives them out in a second
    pass, in the same order. To make one on a GPU waits for it, which a graph cannot capture."""

    _MAKERS = (torch.tensor, torch.as_tensor, torch.Tensor.to, torch.Tensor.cuda)

    def __init__(self) -> None:
        super().__init__()
        self._made: list[Any] = []
        self._next: int | None = None

    def again(self) -> Constants:
        """For the second pass."""
        self._next = 0
        return self

    def __torch_function__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        is_on_gpu = any(isinstance(each, Tensor) and each.is_cuda for each in arguments[:1])
        if function not in self._MAKERS or is_on_gpu:
            return function(*arguments, **keywords)
        if self._next is None:
            self._made.append(function(*arguments, **keywords))
            return self._made[-1].clone()
        self._next += 1
        return self._made[self._next - 1].clone()
