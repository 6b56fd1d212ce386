"""The trial that a function must pass before it is replaced.

The original and the replacement compute a tiny random call on the CPU, in every known form. Outputs and gradients must
agree. Forms that the original refuses are not compared. If the original accepts a form and gives another result, it is
another function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch

from . import data
from .calling import Form, Signature, make_call

# Relative error of float32 in sums of a dozen terms: 1e-7 to 1e-6.
BOUND = 1e-4
# All different, so that no axis can pass for another.
_BATCH, _HEADS, _CHANNELS, _QUERIES = 2, 3, 4, 5
SHAPES = ((4, 6), (3, 5), (2, 1))
STARTS, PIXELS = (0, 24, 39), 41
_FORMS = ((6, 5), (6, 4), (5, 4))


class NotKnown(Exception):
    """A function is left alone; the message is the reason."""


@dataclass(frozen=True)
class _Problem:
    """One call: `[N, S, M, D]`, `[N, Lq, M, samples, 2]`, `[N, Lq, M, samples]`."""

    value: Tensor
    locations: Tensor
    weights: Tensor
    points: list[int]


def find_layouts(
    name: str, signature: Signature, layouts: tuple[str, ...], original: Callable[..., Any]
) -> dict[Form, str]:
    """The forms of a call for which the original and the operator give the same results.

    Raises:
        NotKnown: there is no such form, or the results differ in one.
    """
    found: dict[Form, str] = {}
    refusal = "no form of it was tried"
    with plain_pytorch():
        has_points = signature.position("points") is not None
        problem = _make_problem([2, 1, 3] if has_points else [2, 2, 2])
        for layout in layouts:
            is_list = layout in (data.LEVEL_LIST, data.IMAGE_LIST)
            for axes in _FORMS[-1:] if has_points else _FORMS:
                form = (is_list, *axes)
                if form in found:
                    continue
                # Some functions insist on a tensor of shapes.
                for shapes in (list(SHAPES), torch.tensor(SHAPES, device="cpu")):
                    arguments = _arguments(problem, signature, layout, axes, shapes)
                    try:
                        expected = _answer(original, arguments, problem)
                        break
                    except Exception as error:
                        refusal = f"{type(error).__name__}: {error}".splitlines()[0]
                else:
                    continue
                answer = _answer(make_call(name, signature, {form: layout}, refuse), arguments, problem)
                _compare(answer, expected)
                found[form] = layout
    if not found:
        raise NotKnown(f"it takes no call that is known here; the last one that was tried gave {refusal}")
    return found


def refuse(*_: Any, **__: Any) -> Any:
    """In place of an original that a trial must not call."""
    raise NotKnown("the operator cannot be called here")


def random_numbers(seed: int) -> Callable[..., Tensor]:
    """A function that makes tensors of a shape, with numbers between 0 and 1."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float32, device="cpu")

    return uniform


def _make_problem(points: list[int]) -> _Problem:
    """Some samples lie outside; none close to a border between cells, where the gradient jumps."""
    uniform = random_numbers(3)
    pieces = []
    for (height, width), count in zip(SHAPES, points, strict=True):
        size = torch.tensor([width, height], dtype=torch.float32, device="cpu")
        cells = (uniform(_BATCH, _QUERIES, _HEADS, count, 2) * (size + 2)).floor() - 1
        fractions = 0.1 + 0.8 * uniform(_BATCH, _QUERIES, _HEADS, count, 2)
        pieces.append((cells + fractions + 0.5) / size)
    value = uniform(_BATCH, PIXELS, _HEADS, _CHANNELS) - 0.5
    weights = uniform(_BATCH, _QUERIES, _HEADS, sum(points))
    locations = torch.cat(pieces, dim=3)
    return _Problem(value.requires_grad_(), locations.requires_grad_(), weights.requires_grad_(), points)


def _arguments(
    problem: _Problem, signature: Signature, layout: str, axes: tuple[int, int], shapes: Any
) -> tuple[Any, ...]:
    locations, weights = problem.locations, problem.weights
    by_level = (len(SHAPES), problem.points[0])
    if axes[0] == 6:
        locations = locations.unflatten(3, by_level)
    if axes[1] == 5:
        weights = weights.unflatten(3, by_level)
    return signature.arguments(
        value=_laid_out(layout, problem.value),
        shapes=shapes,
        sizes=list(SHAPES),
        starts=torch.tensor(STARTS, device="cpu"),
        locations=locations,
        weights=weights,
        points=problem.points,
    )


def _laid_out(layout: str, value: Tensor) -> Any:
    if layout == data.PIXELS:
        return value
    value = value.permute(0, 2, 3, 1).contiguous()
    if layout == data.CHANNELS:
        return value
    levels = value.split([height * width for height, width in SHAPES], dim=-1)
    if layout == data.LEVEL_LIST:
        return levels
    return [level.flatten(0, 1).unflatten(2, shape) for level, shape in zip(levels, SHAPES, strict=True)]


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], problem: _Problem) -> list[Tensor]:
    """The output and the gradients of the three tensors."""
    output = function(*arguments)
    tensors = problem.value, problem.locations, problem.weights
    return [output.detach(), *torch.autograd.grad(output, tensors, random_numbers(4)(*output.shape))]


def _compare(found: list[Tensor], expected: list[Tensor]) -> None:
    what = ("output", "gradient of the values", "gradient of the locations", "gradient of the weights")
    for reason in map(difference, what, found, expected):
        if reason is not None:
            raise NotKnown(f"in a small random call {reason}")


def difference(name: str, found: Tensor | None, expected: Tensor | None) -> str | None:
    """The difference of a result of the original from the operator's; `None` if they agree."""
    if found is None or expected is None:
        return None if found is expected else f"its {name} is {'missing' if expected is None else 'there'}"
    if found.shape != expected.shape:
        return f"its {name} has shape {list(expected.shape)} where {list(found.shape)} was expected"
    error = float((found - expected).norm() / expected.norm())
    # Written so that NaN is a difference.
    return None if error <= BOUND else f"its {name} is not the operator's, relative difference {error:.2g}"


@contextmanager
def plain_pytorch() -> Iterator[None]:
    """Turns off the modes, default device, autocast and trace that surround an import."""
    trace = torch._C._get_tracing_state()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_python_dispatch._disable_current_modes())
        if trace is not None:
            torch._C._set_tracing_state(None)
            stack.callback(torch._C._set_tracing_state, trace)
        yield
