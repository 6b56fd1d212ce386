"""The trial that a layer must pass before its `forward` is replaced.

The trial makes a small layer with random projections and only the known attributes, so a version that reads another
attribute fails. The original and the replacement compute calls in every form, in training and in evaluation. Outputs,
weights and all gradients must agree.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .checking import PIXELS, SHAPES, STARTS, NotKnown, difference, plain_pytorch, random_numbers, refuse
from .data import LEVELS, WIDTH, Inner, Layer, Projection
from .fusing import ROLES, Answer, Form, Known, make_layer_call

_BATCH, _QUERIES = 2, 7
_FORMS = tuple(itertools.starmap(Form, itertools.product((2, 4), (True, False), (False, True))))
assert len(SHAPES) == LEVELS


def find_layer(
    name: str, layers: list[Layer], kind: type[nn.Module], function: types.FunctionType, original: Callable[..., Any]
) -> Known:
    """The known layer that a class implements.

    Each function is tried once, so that a repeated patch does not wait again.

    Raises:
        NotKnown: the class is not a known layer, or computes something else.
    """
    tried = _tried.get(function)
    if tried is not None and tried[0] is function.__code__ and _has_inside(function, tried[1]):
        return tried[1]
    parameters = tuple(inspect.signature(function).parameters)[1:]
    fitting = [layer for layer in layers if parameters in layer.calls]
    if not fitting:
        raise NotKnown(f"it takes {parameters}; this version is unknown")
    _check_that_they_are_ignored(function.__code__, [each for each in parameters if each not in ROLES])
    reasons = []
    for layer in fitting:
        try:
            # Unknown versions may draw random numbers.
            with plain_pytorch(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known = _try(name, layer, parameters, kind, function, original)
            _tried[function] = function.__code__, known
            return known
        except NotKnown as error:
            reasons.append(str(error))
    raise NotKnown("; ".join(dict.fromkeys(reasons)))


# The results of trials, by function, with the code that was tried.
_tried: weakref.WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, Known]] = weakref.WeakKeyDictionary()


def _has_inside(function: types.FunctionType, known: Known) -> bool:
    """Whether the functions that computed inside during the trial are still in the module."""
    held = {known.layer.attributes[attribute].name: inner for attribute, inner in known.inner.items()}
    return all(function.__globals__.get(name) is found for name, found in {**known.functions, **held}.items())


# Names of the instructions that access variables, in every version of Python.
_OF_VARIABLES = ("FAST", "DEREF", "CELL", "CLOSURE")


def _check_that_they_are_ignored(code: types.CodeType, parameters: list[str]) -> None:
    for instruction in dis.get_instructions(code):
        if any(word in instruction.opname for word in _OF_VARIABLES):
            named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            for used in set(parameters).intersection(named):
                raise NotKnown(f"it uses `{used}`, which versions that are known ignore")


def _try(
    name: str,
    layer: Layer,
    parameters: tuple[str, ...],
    kind: type[nn.Module],
    function: types.FunctionType,
    original: Callable[..., Any],
) -> Known:
    functions = {each: _own(function, each) for each in layer.functions if each in function.__globals__}
    inner = {
        attribute: _own(function, made.name)
        for attribute, made in layer.attributes.items()
        if isinstance(made, Inner) and isinstance(function.__globals__.get(made.name), (type, types.FunctionType))
    }
    module = _small_layer(layer, kind, inner)
    answers: dict[Form, Answer] = {}
    refusal = "no form of it was tried"
    for form in _FORMS:
        calls = [
            _Call(module, layer, parameters, form, is_training, is_first)
            for is_training in (True, False)
            for is_first in ((True, False) if layer.batch_first else (True,))
        ]
        try:
            expected = [call.answer(original) for call in calls]
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        weights = expected[0]["weights"]
        reasons = []
        for masks_padding in (True, False) if form.has_mask else (True,):
            answer = Answer(masks_padding, 0 if weights is None else weights.dim())
            known = Known(layer, parameters, {form: answer}, functions, inner)
            replacement = functools.partial(make_layer_call(name, known, refuse), tuple(functions.values()))
            reason = next(filter(None, map(_difference, calls, itertools.repeat(replacement), expected)), None)
            if reason is None:
                answers[form] = answer
                break
            reasons.append(reason)
        else:
            raise NotKnown(f"in a small random call {' or '.join(reasons)}")
    if not answers:
        raise NotKnown(f"it takes no call that is known here; the last one that was tried gave {refusal}")
    return Known(layer, parameters, answers, functions, inner)


def _own(function: types.FunctionType, name: str) -> Any:
    """The object with a name in a function's module. Refuses objects of other packages."""
    found = function.__globals__[name]
    module = str(getattr(found, "__module__", ""))
    if module.partition(".")[0] != function.__module__.partition(".")[0]:
        raise NotKnown(f"its `{name}` was replaced, by something of {module}")
    return found


class _Call:
    """One call of the small layer, which can be repeated."""

    def __init__(
        self, module: Any, layer: Layer, parameters: tuple[str, ...], form: Form, is_training: bool, is_first: bool
    ) -> None:
        random = random_numbers(5)

        def uniform(*shape: int) -> Tensor:
            return random(*shape).requires_grad_()

        def sequence(length: int) -> Tensor:
            return uniform(_BATCH, length, WIDTH) if is_first else uniform(length, _BATCH, WIDTH)

        self._module, self._is_training = module, is_training
        self._batch_first = {} if layer.batch_first is None else {layer.batch_first: is_first}
        references = LEVELS if form.is_per_level else 1
        self._by_role: dict[str, Any] = {
            "query": sequence(_QUERIES),
            "pixels": sequence(PIXELS),
            "references": uniform(_BATCH, _QUERIES, references, form.coordinates),
            # In evaluation optional arguments are left out.
            "positions": sequence(_QUERIES) if is_training else None,
            "identity": sequence(_QUERIES) if is_training else None,
            "mask": uniform(_BATCH, PIXELS).detach() < 0.7 if form.has_mask else None,
            "shapes": torch.tensor(SHAPES, device="cpu"),
            "sizes": list(SHAPES),
            "starts": torch.tensor(STARTS, device="cpu"),
        }
        self._arguments = [self._by_role.get(ROLES.get(each, "")) for each in parameters if each != "kwargs"]

    def answer(self, function: Callable[..., Any]) -> dict[str, Tensor | None]:
        """Output and weights, and in training all gradients."""
        self._module.train(self._is_training)
        vars(self._module).update(self._batch_first)
        with torch.set_grad_enabled(self._is_training):
            result = function(self._module, *self._arguments)
        output, weights = result if isinstance(result, tuple) else (result, None)
        found = {"output": output, "weights": weights}
        if self._is_training:
            leaves = {f"gradient of `{name}`": each for name, each in self._module.named_parameters()}
            for role, each in self._by_role.items():
                if isinstance(each, Tensor) and each.requires_grad:
                    leaves[f"gradient of its {role}"] = each
            outputs = [each for each in (output, weights) if each is not None]
            random = random_numbers(6)
            directions = [random(*each.shape) for each in outputs]
            gradients = torch.autograd.grad(outputs, list(leaves.values()), directions, allow_unused=True)
            found |= dict(zip(leaves, gradients, strict=True))
        return {name: None if each is None else each.detach() for name, each in found.items()}


def _difference(call: _Call, replacement: Callable[..., Any], expected: dict[str, Tensor | None]) -> str | None:
    """The first difference between the replacement and the original; `None` if they agree."""
    found = call.answer(replacement)
    return next(filter(None, (difference(name, found[name], exact) for name, exact in expected.items())), None)


def _small_layer(layer: Layer, kind: type[nn.Module], inner: dict[str, Any]) -> Any:
    generator = torch.Generator("cpu").manual_seed(4)
    module: Any = object.__new__(kind)
    nn.Module.__init__(module)
    for attribute, made in layer.attributes.items():
        if isinstance(made, Inner):
            if attribute in inner:
                held = inner[attribute]
                setattr(module, attribute, held() if isinstance(held, type) else held)
        elif isinstance(made, Projection):
            setattr(module, attribute, _projection(made.outputs, generator))
        elif isinstance(made, tuple):
            module.register_buffer(attribute, torch.tensor(made, dtype=torch.float32, device="cpu"))
        else:
            setattr(module, attribute, made() if isinstance(made, type) else made)
    return module


def _projection(outputs: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with random numbers, which leaves PyTorch's own generator alone."""
    made = nn.utils.skip_init(nn.Linear, WIDTH, outputs, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        made.weight.uniform_(-1.0, 1.0, generator=generator).mul_(WIDTH**-0.5)
        made.bias.uniform_(-1.0, 1.0, generator=generator)
    return made
