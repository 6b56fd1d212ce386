"""Types of arguments, for type checkers. A running program does not import this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Scalar = TypeVar("Scalar", bound=np.generic)

# (height, width) of each level.
Shapes: TypeAlias = "Sequence[Sequence[int]] | Sequence[Tensor] | Tensor | NDArray[np.integer[Any]]"
# The first pixel of each level.
Starts: TypeAlias = "Sequence[int] | Sequence[Tensor] | Tensor | NDArray[np.integer[Any]]"
# Points per level: of all, or of each.
Points: TypeAlias = "int | Sequence[int]"


class Exchangeable(Protocol):
    """An array of another library, exchanged by DLPack."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...
