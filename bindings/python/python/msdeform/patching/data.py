"""The known functions and layers of a package, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def parameters(text: str) -> tuple[str, ...]:
    """The names of a function's parameters, as its definition lists them."""
    return tuple(text.split(", "))


def roles(**names: str) -> dict[str, str]:
    """The role of a parameter by its name, from the names of each role."""
    return {name: role for role, listed in names.items() for name in listed.split()}


# How a function takes its values; see `calling`.
PIXELS, CHANNELS, LEVEL_LIST, IMAGE_LIST = "pixels", "channels", "level list", "image list"


@dataclass(frozen=True)
class Function:
    """A function of a module, or a method of one of its classes (`Class.method`)."""

    name: str
    # The parameters of every version that is known.
    calls: tuple[tuple[str, ...], ...]
    layouts: tuple[str, ...] = (PIXELS,)


@dataclass(frozen=True)
class AutogradFunction:
    """A `torch.autograd.Function` around a compiled extension; its `apply` is replaced."""

    name: str
    # The parameters of its `forward`.
    calls: tuple[tuple[str, ...], ...]


# The sizes of the small layer of a trial, see `checking_layers`. All different, so that no axis can pass for another.
LEVELS, HEADS, POINTS, WIDTH = 3, 4, 5, 24


@dataclass(frozen=True)
class Projection:
    """An attribute that is a linear layer from the width of the model."""

    outputs: int


@dataclass(frozen=True)
class Inner:
    """An attribute that computes inside of a layer: a function of the layer's module, or a module of a class there."""

    name: str


@dataclass(frozen=True)
class Layer:
    """A layer around the operator, from its projections to its output: its `forward` is replaced."""

    # Its classes are those whose names end with this.
    name: str
    # The parameters of `forward`, without `self`, of every version that is known.
    calls: tuple[tuple[str, ...], ...]
    # All attributes that `forward` may read, as a small layer has them. A version that reads others is unknown.
    attributes: Mapping[str, Any]
    # Attributes that must have these values. With other values the layer computes something else.
    expected: Mapping[str, Any] = field(default_factory=dict)
    # Functions of its module that compute inside. If a user replaces one of them, the replacement must be called.
    functions: tuple[str, ...] = ()
    # Attributes with the numbers of heads and points, and the part of a box that an offset of one stands for.
    heads: str = "n_heads"
    points: str = "n_points"
    offset_scale: str | None = None
    # The attribute that chooses whether images come before queries, if there is one.
    batch_first: str | None = None
    # The beginnings of class names whose decoders have one box for all levels. Other decoders have one per level.
    one_box: tuple[str, ...] = ()

    def computes_as_known(self, module: Any) -> bool:
        """Whether a layer has no attribute with another value than the expected one."""
        return all(getattr(module, attribute, only) == only for attribute, only in self.expected.items())

    @property
    def projects_values(self) -> bool:
        """Whether values and output go through linear layers of its own."""
        return "value_proj" in self.attributes


@dataclass(frozen=True)
class Package:
    """The modules of a package, and the attributes that compute the operator."""

    # Its name in `patch()`.
    name: str
    # Its modules: these names and their submodules. Empty: any module.
    modules: tuple[str, ...]
    places: tuple[Function | AutogradFunction, ...]
    # Top-level modules, at least one of which must be installed.
    tops: tuple[str, ...]
    layers: tuple[Layer, ...] = ()
    aliases: tuple[str, ...] = ()
    # Whether it imports the original extension, which usually cannot be built.
    takes_extension: bool = False

    @property
    def is_anywhere(self) -> bool:
        """Whether its functions were copied into so many packages that any module may have them."""
        return not self.modules

    def holds(self, module: str) -> bool:
        """Whether a module of this name belongs to the package."""
        return self.is_anywhere or any(module == name or module.startswith(f"{name}.") for name in self.modules)
