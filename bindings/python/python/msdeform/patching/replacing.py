"""Replaces functions and restores them, for each call of `patch()`.

A function keeps its identity and gets other code. A module that imported the function by name, a model that was built
before and a pickled model therefore hold the same function before, during and after the replacement.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from .calling import Form, Signature, make_call
from .checking import NotKnown, find_layouts
from .checking_layers import find_layer
from .data import PIXELS, AutogradFunction, Function, Layer, Package
from .fusing import Known, make_layer_call
from .reporting import own_code, warn

_numbers = itertools.count()


class Place(NamedTuple):
    """A function or layer that was found, and whether it was replaced."""

    name: str
    is_replaced: bool
    # How it was compared, or why it was left alone.
    reason: str
    # Whether it is a whole layer.
    is_layer: bool = False


class Patch(list[str]):
    """The names that one call of `patch()` replaced. The end of a `with` statement undoes that call."""

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        for application in [application for application in applications if application.names is self]:
            application.close()


@dataclass
class Application:
    """One call of `patch()`: its packages, its replacements and how to undo them."""

    packages: tuple[Package, ...]
    # Whether whole layers are replaced too.
    fuses: bool = False
    names: Patch = field(default_factory=Patch)
    places: list[Place] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        applications.append(self)

    def add(self, name: str, reason: str, undo: Callable[[], None], is_layer: bool = False) -> None:
        """Remembers a replacement."""
        self.names.append(name)
        self.places.append(Place(name, True, reason, is_layer))
        self.undo.append(undo)

    def leave(self, name: str, reason: str, folder: str | None, is_layer: bool = False) -> None:
        """Records a place that is left alone, and warns once."""
        if any(place.name == name for place in places()):
            return
        self.places.append(Place(name, False, reason, is_layer))
        warn(f"msdeform leaves {name} alone: {reason}", folder)

    def close(self) -> None:
        """Restores all originals, the last replacement first."""
        applications.remove(self)
        while self.undo:
            self.undo.pop()()
        if self.names:
            forget_compiled()


# Those that are not undone, the oldest first.
applications: list[Application] = []


def places() -> list[Place]:
    """All functions and layers that were found."""
    return [place for application in applications for place in application.places]


def is_wanted(module: str) -> bool:
    """Whether a module of this name may have to be patched."""
    return any(package.holds(module) for application in applications for package in application.packages)


def forget_compiled() -> None:
    """Makes `torch.compile` compile again what it has compiled so far.

    Its graphs contain the code of the functions that they call. Dynamo's guards do not notice if the method of a layer
    gets other code, so that the old graph would go on running. Dynamo does not record which graphs contain a function
    either, so all of them go.

    Functions of a module that is being imported are in no graph yet. There this must not be called: the import may be
    part of a function that is being compiled.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        # Not `reset()`, which also forgets the user's callbacks and ends the CUDA graphs of other models.
        dynamo.reset_code_caches()


# What a module has ---------------------------------------------------------------------------------------------


def scan(module: types.ModuleType, only: Application | None = None) -> None:
    """Replaces what is known in a module."""
    for application in applications if only is None else [only]:
        for package in application.packages:
            if package.holds(module.__name__):
                for place in package.places:
                    if isinstance(place, Function):
                        _patch_function(application, module, place)
                    else:
                        _patch_autograd(application, module, place)
                if application.fuses and package.layers:
                    _patch_layers(application, module, package)


def _patch_function(application: Application, module: types.ModuleType, place: Function) -> None:
    owner, _, attribute = place.name.rpartition(".")
    holder = vars(module).get(owner) if owner else module
    # Only what is there is looked at: asked for a name that it does not have, a module may import others to find it.
    if not isinstance(holder, (type, types.ModuleType)):
        return
    if vars(holder).get("__module__", module.__name__) != module.__name__:
        return
    function = vars(holder).get(attribute)
    if not inspect.isfunction(function) or function.__module__ != module.__name__ or function in _replaced:
        return  # Patched where it was defined: that is enough for all who imported it.
    name = f"{module.__name__}.{place.name}"

    def replace() -> tuple[str, Callable[[], None]]:
        signature = _known_signature(function, place.calls)
        original = _copy(function)
        layouts = find_layouts(name, signature, place.layouts, original)
        undo = _exchange_code(function, make_call(name, signature, layouts, original))
        return "a small random call gave the same before and after", undo

    _attempt(application, module, name, replace)


def _patch_autograd(application: Application, module: types.ModuleType, place: AutogradFunction) -> None:
    found: Any = vars(module).get(place.name)
    if not _is_autograd(found) or found.__module__ != module.__name__ or "apply" in vars(found):
        return
    name = f"{module.__name__}.{place.name}.apply"

    def replace() -> tuple[str, Callable[[], None]]:
        signature = _known_signature(found.forward, tuple(("ctx", *call) for call in place.calls))
        reason = _compare_slow_path(name, module)
        call = make_call(name, Signature(signature.parameters[1:]), {_EXTENSION_FORM: PIXELS}, found.apply)
        found.apply = staticmethod(call)
        return reason, lambda: delattr(found, "apply")

    _attempt(application, module, name, replace)


def _patch_layers(application: Application, module: types.ModuleType, package: Package) -> None:
    for attribute, kind in list(vars(module).items()):
        layers = [layer for layer in package.layers if attribute.endswith(layer.name)]
        if layers and isinstance(kind, type) and kind.__module__ == module.__name__ and issubclass(kind, nn.Module):
            _patch_layer(application, module, layers, kind)


def _patch_layer(application: Application, module: types.ModuleType, layers: list[Layer], kind: type[Any]) -> None:
    # Packages rename arguments by wrappers, which go on calling the function inside.
    function = inspect.unwrap(vars(kind)["forward"]) if "forward" in vars(kind) else None
    if not inspect.isfunction(function) or function in _replaced:
        return  # Inherited: replaced where it was defined.
    name = f"{module.__name__}.{kind.__qualname__}.forward"

    def replace() -> tuple[str, Callable[[], None]]:
        original = _copy(function)
        known = find_layer(name, layers, kind, function, original)
        exchange_back = _exchange_code(function, make_layer_call(name, known, original), tuple(known.functions))
        _fused[function] = known

        def undo() -> None:
            _fused.pop(function, None)
            exchange_back()

        return "the whole layer: a small random one gave the same before and after", undo

    _attempt(application, module, name, replace, is_layer=True)


# Functions `forward` that call the operator from offsets.
_fused: dict[types.FunctionType, Known] = {}


def fused_layer(layer: nn.Module) -> Layer | None:
    """The data of a layer that is replaced as a whole; `None` if it is not, or computes something else.

    Subclasses call the replaced `forward` too.
    """
    functions = (inspect.unwrap(vars(kind)["forward"]) for kind in type(layer).__mro__ if "forward" in vars(kind))
    known = next((_fused[function] for function in functions if function in _fused), None)
    return known.layer if known is not None and known.layer.computes_as_known(layer) else None


def _attempt(
    application: Application,
    module: types.ModuleType,
    name: str,
    replace: Callable[[], tuple[str, Callable[[], None]]],
    is_layer: bool = False,
) -> None:
    try:
        reason, undo = replace()
    except NotKnown as error:
        application.leave(name, str(error), _folder(module), is_layer)
    except Exception as error:  # Any error leaves the original in place.
        application.leave(name, f"{type(error).__name__}: {error}", _folder(module), is_layer)
    else:
        application.add(name, reason, undo, is_layer)


def _is_autograd(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, torch.autograd.Function)


_EXTENSION_FORM: Form = (False, 6, 5)


def _compare_slow_path(name: str, module: types.ModuleType) -> str:
    """Compares the slow path of an extension with the operator.

    The extension itself is not called, because it is compiled for GPUs and may not check for host memory. If there is
    no slow path, the parameters suffice, because all packages compile the same extension.
    """
    for attribute in ("ms_deform_attn_core_pytorch", "multi_scale_deformable_attn_pytorch"):
        slow = vars(module).get(attribute)
        if inspect.isfunction(slow):
            slow = _replaced.get(slow, slow)
            layouts = find_layouts(name, Signature(tuple(inspect.signature(slow).parameters)), (PIXELS,), slow)
            if _EXTENSION_FORM not in layouts:
                raise NotKnown(f"its slow path {attribute} takes other calls")
            return f"its slow path {attribute} gave the same"
    return "by its parameters alone: it has no other path"


def _known_signature(function: Any, calls: tuple[tuple[str, ...], ...]) -> Signature:
    try:
        parameters = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = ()
    if parameters not in calls:
        raise NotKnown(
            f"it takes {parameters}, but {' or '.join(map(str, calls))} was expected; this version is unknown"
        )
    return Signature(parameters)


def _folder(module: types.ModuleType) -> str | None:
    """The folder of a module's package."""
    top = sys.modules.get(module.__name__.partition(".")[0])
    file = getattr(top, "__file__", None)
    return os.path.dirname(file) if isinstance(file, str) and hasattr(top, "__path__") else None


# Exchanging code -----------------------------------------------------------------------------------------------

# Functions whose code is exchanged, with copies that have their own.
_replaced: dict[types.FunctionType, types.FunctionType] = {}


def _copy(function: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _exchange_code(
    function: types.FunctionType, call: Callable[..., Any], functions: tuple[str, ...] | None = None
) -> Callable[[], None]:
    """Makes a function pass its arguments to `call`; returns a function that undoes this.

    If `functions` has names of the function's module, the first argument is a tuple with these functions, read at the
    time of the call.

    The new code keeps the file and line of the old code, so that readers of sources, such as `torch.jit.script`, still
    find the original.
    """
    parameters = inspect.signature(function).parameters.values()
    stars: dict[Any, str] = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "", inspect.Parameter.VAR_KEYWORD: "**"}
    if function.__closure__ is not None or any(each.kind not in stars for each in parameters):
        raise NotKnown("it is wrapped by something, or takes arguments by keyword only")
    listed = ", ".join(stars[each.kind] + each.name for each in parameters)
    before = "" if functions is None else f"({''.join(f'{each}, ' for each in functions)}), "
    # Code finds what it calls by a name in the module of its function.
    key = f"__msdeform_{next(_numbers)}__"
    namespace: dict[str, Any] = {}
    exec(f"def {function.__name__}({listed}):\n    return {key}({before}{listed})\n", namespace)
    old = function.__code__
    new = namespace[function.__name__].__code__.replace(co_filename=old.co_filename, co_firstlineno=old.co_firstlineno)
    _replaced[function] = _copy(function)
    own_code.add(new)
    function.__globals__[key] = call
    function.__code__ = new

    def undo() -> None:
        if function.__code__ is new:  # Other code may have replaced it since.
            function.__code__ = old
        function.__globals__.pop(key, None)
        _replaced.pop(function, None)
        own_code.discard(new)

    return undo
