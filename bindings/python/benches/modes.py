"""How a pass is run: eager, compiled, or as a CUDA graph. Each gives a step for every way of `passes.WAYS`, warmed up.

A CUDA graph and, less so, a compiled model spare the host: they show what the patch saves where a slow host hides it.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from passes import AFTER, BEFORE, PLAIN, Calls, Step, Switch, count_calls, make_step
from torch import Tensor
from torch.overrides import TorchFunctionMode
from zoo import Model

# What `torch.compile` uses, and how long it may take for one model, one way.
BACKEND = "inductor"
LIMIT_S = 600

EVERY_FORMAT = ("f32", "f16", "bf16")
# By device and mode: which passes, in which formats, unless somebody asks for others. Compiling takes minutes, so one
# pass in one format must do.
PLAN: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "cuda": {
        "eager": (("inference", "training"), EVERY_FORMAT),
        "graph": (("inference", "training"), EVERY_FORMAT),
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


class Ready(NamedTuple):
    """What can be timed, and what cannot."""

    steps: dict[str, Step]
    # Of ways that fail, their reasons.
    left_out: dict[str, str]
    # Calls of the operator from offsets that the profiler sees in a pass of the patched model: none, nothing is fused.
    fused_calls: int

    @property
    def is_fault(self) -> bool:
        """Whether something fails that works without the patch."""
        return bool(self.left_out) and BEFORE not in self.left_out


def make_steps(
    mode: str, network: Any, model: Model, pixels: Tensor, work: str, dtype: str, switch: Switch, scale: float
) -> Ready:
    """Steps for every way that can be run in this mode; `scale` is that of the loss.

    Raises:
        LeftOut: the patched model cannot be, or one way is not what it is said to be.
    """
    if mode in model.left_out:
        raise LeftOut(model.left_out[mode], is_fault=False)
    torch._dynamo.reset()  # Before: other models through the same code, of which it keeps eight.
    # One for each way, for PyTorch keeps what it compiled by code and compiler.
    calls: dict[str, Callable[[Tensor], Any]] = {
        BEFORE: lambda pixels: network(pixels),
        PLAIN: lambda pixels: network(pixels),
        AFTER: lambda pixels: network(pixels),
    }
    steps: dict[str, Step] = {}
    left_out: dict[str, str] = {}
    used = Calls(0, 0)
    for way in switch.ways:
        switch.set(way)
        network.zero_grad()
        try:
            # What is compiled behind a break of the graph is kept with the model's code, for all ways together: each
            # has as much room as it would have alone.
            room = torch._dynamo.config.recompile_limit * len(switch.ways)
            with _time_limit(LIMIT_S if mode == "compiled" else 0), torch._dynamo.config.patch(recompile_limit=room):
                call = calls[way]
                if mode == "compiled":
                    call = torch.compile(call, backend=_own_compiler(), dynamic=False)
                step = make_step(model, call, pixels, work, dtype)
                step(scale)
                if mode == "graph":
                    step, used = _capture(network, step, scale)
                else:
                    used = count_calls(lambda step=step: step(scale))
        except (Exception, _TooLong) as error:
            left_out[way] = _reason(mode, error)
            continue
        if not _is_what_it_is_called(way, used):
            found = f"{used.all} calls of the operator, {used.fused} of them from offsets"
            raise LeftOut(f"{way}: {found}", is_fault=True)
        steps[way] = step
    network.zero_grad()
    ready = Ready(steps, left_out, used.fused)
    if AFTER in left_out or (left_out and mode == "eager"):
        # What works without the patch must work with it, and a model as it is in any case.
        reasons = "; ".join(f"{way}: {reason}" for way, reason in left_out.items())
        raise LeftOut(reasons, is_fault=ready.is_fault or mode == "eager")
    return ready


def _own_compiler() -> Callable[..., Any]:
    """A compiler that no other way uses.

    After a graph break inside a model, the rest of the code belongs to the model. If two ways shared a compiler,
    PyTorch would run the first way's compiled code for the second way.
    """
    compiler = torch._dynamo.lookup_backend(BACKEND)
    return lambda graph, inputs: compiler(graph, inputs)


def _is_what_it_is_called(way: str, used: Calls) -> bool:
    if way == BEFORE:
        return used.all == 0
    return used.all > 0 and (way != PLAIN or used.fused == 0)


def _reason(mode: str, error: BaseException) -> str:
    """What was said, its first lines, of a graph with the place in the model's code."""
    where = ""
    if mode == "graph":
        # When a capture has failed, its end complains as well.
        while error.__context__ is not None:
            error = error.__context__
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "/torch/" not in each.filename]
        where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    said = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])
    return f"{where}{said[:160]}"


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


def _capture(network: Any, step: Step, scale: float) -> tuple[Step, Calls]:
    """The pass as a graph, and how often the operators are in it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    constants = Constants()
    with torch.cuda.stream(stream), _without_checks():
        step(scale)
        with constants:
            step(scale)
    torch.cuda.current_stream().wait_stream(stream)
    # Gradients that are not there are written by the graph, others would be added to.
    network.zero_grad()
    graph = torch.cuda.CUDAGraph()
    outputs: list[Tensor] = []

    def capture() -> None:
        # Other threads, the profiler's among them, may do what they like.
        with _without_checks(), constants.again(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs.append(step(scale))

    used = count_calls(capture)
    gradients = [(each, each.grad) for each in network.parameters() if each.grad is not None]

    def replay(_: float, _read: Constants = constants) -> Tensor:
        # The graph reads the constants where they are: they live as long as it does.
        graph.replay()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        return outputs[0]

    return replay, used


@contextmanager
def _without_checks() -> Iterator[None]:
    """Grounding DINO compares its shapes on the GPU and waits for the answer in every layer, which no graph can.
    transformers lets users turn such checks off."""
    name = "TRANSFORMERS_DISABLE_TORCH_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class Constants(TorchFunctionMode):
    """Keeps the tensors that a model makes of numbers, as those of its levels' shapes, and gives them out in a second
    pass, in the same order. To make one on a GPU waits for it, which a graph cannot capture. Numbers that are written
    into a tensor one by one are no copies then, but part of the graph."""

    _MAKERS = (torch.tensor, torch.as_tensor, torch.Tensor.to, torch.Tensor.type_as, torch.Tensor.cuda)

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
        if function is torch.Tensor.__setitem__ and _is_number_at_a_place(*arguments[1:]):
            arguments[0][arguments[1]].fill_(arguments[2])
            return None
        if function is torch.Tensor.__getitem__:
            # Indices in host memory are handed over too.
            arguments = (arguments[0], self._beside(arguments[0], arguments[1]))
        is_on_gpu = any(isinstance(each, Tensor) and each.is_cuda for each in arguments[:1])
        if function not in self._MAKERS or is_on_gpu:
            return function(*arguments, **keywords)
        if self._next is None:
            self._made.append(function(*arguments, **keywords))
            return self._made[-1].clone()
        self._next += 1
        return self._made[self._next - 1].clone()

    def _beside(self, tensor: Tensor, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(self._beside(tensor, each) for each in index)
        is_elsewhere = isinstance(index, Tensor) and index.device != tensor.device
        return self.__torch_function__(torch.Tensor.to, (), (index, tensor.device)) if is_elsewhere else index


def _is_number_at_a_place(index: Any, value: Any) -> bool:
    """Whether what an index picks is a view, and gets one number."""
    indices = index if isinstance(index, tuple) else (index,)
    return isinstance(value, (int, float)) and all(type(each) in (int, slice) for each in indices)
