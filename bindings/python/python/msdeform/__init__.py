"""Multi-scale deformable attention for PyTorch and NumPy.

`ms_deform_attn` is the operator, `MSDeformAttn` the layer of Deformable-DETR around it, and `patch()` lets existing
models use it. PyTorch is imported when one of its parts is used, so that NumPy alone is enough otherwise.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from . import _native, reference
from ._imports import when_imported
from ._native import Unavailable, __version__, bench, device_info, variants, workloads
from ._warm import Shape, warm_up
from .functional import ms_deform_attn

if TYPE_CHECKING:
    from .from_offsets import ms_deform_attn_from_offsets
    from .module import MSDeformAttn
    from .patching import patch, patched, unpatch
    from .sharding import register_sharding

__all__ = [
    "MSDeformAttn",
    "Shape",
    "Unavailable",
    "__version__",
    "bench",
    "device_info",
    "ms_deform_attn",
    "ms_deform_attn_from_offsets",
    "patch",
    "patched",
    "reference",
    "register_sharding",
    "unpatch",
    "variants",
    "warm_up",
    "workloads",
]

# NVRTC may come from another wheel in this environment, even if the environment is not activated.
_native.search_packages([folder for folder in sys.path if folder])
# NVRTC would crash if it still compiled while the process ends.
atexit.register(_native.end_compiling_ahead)


def _tell_flops(counter: Any) -> None:
    from ._flops import tell

    tell(counter)


# At import and not at the first call, because a counter copies the formulas when it is created. Not by importing the
# counter's module here, because it imports Triton.
when_imported("torch.utils.flop_counter", _tell_flops)

_NEEDS_TORCH = {
    "MSDeformAttn": "module",
    "ms_deform_attn_from_offsets": "from_offsets",
    "patch": "patching",
    "patched": "patching",
    "register_sharding": "sharding",
    "unpatch": "patching",
}


if not TYPE_CHECKING:  # With this function, type checkers would accept every name.

    def __getattr__(name: str) -> Any:
        module = _NEEDS_TORCH.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            found = getattr(import_module(f".{module}", __name__), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(f"`msdeform.{name}` needs PyTorch; `pip install torch`", name="torch") from error
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
