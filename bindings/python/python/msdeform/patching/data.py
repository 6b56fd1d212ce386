"""What is known of a package: plain data."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Package:
    """Where its modules are and which of their attributes are the operator."""

    # What `patch()` calls it.
    name: str
    # Its modules: these names and what is below them. None: any module.
    modules: tuple[str, ...]
    places: tuple[Function | AutogradFunction, ...]
    # What must be installed for it to make sense.
    tops: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    # Whether it imports the extension that nobody can build.
    takes_extension: bool = False

    @property
    def is_anywhere(self) -> bool:
        """Whether its functions were copied into so many packages that any module may have them."""
        return not self.modules

    def holds(self, module: str) -> bool:
        """Whether a module of this name is one of its."""
        return self.is_anywhere or any(module == name or module.startswith(f"{name}.") for name in self.modules)


TENSORS = ("value", "value_spatial_shapes", "sampling_locations", "attention_weights")
POINT_LIST = (*TENSORS, "num_points_list", "method")
EXTENSION = (
    "value",
    "value_spatial_shapes",
    "value_level_start_index",
    "sampling_locations",
    "attention_weights",
    "im2col_step",
)
