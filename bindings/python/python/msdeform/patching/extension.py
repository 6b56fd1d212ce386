"""A stand-in for the extension that Deformable-DETR and its relatives compile."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

from torch import Tensor

from .. import operator as operator  # For the kernels that it registers.
from .._operators import PLAIN
from ..functional import ms_deform_attn
from .replacing import Application

_NAME = "MultiScaleDeformableAttention"


def provide_extension(application: Application) -> None:
    """Puts the stand-in where `import` finds it, unless the extension is installed."""
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is not None:
        return
    module = types.ModuleType(_NAME, "msdeform in place of the compiled extension")
    # Without it `importlib.util.find_spec` raises.
    module.__spec__ = ModuleSpec(_NAME, None, origin="msdeform")
    module.ms_deform_attn_forward = ms_deform_attn  # type: ignore[attr-defined]
    module.ms_deform_attn_backward = ms_deform_attn_backward  # type: ignore[attr-defined]
    sys.modules[_NAME] = module

    def undo() -> None:
        if sys.modules.get(_NAME) is module:
            del sys.modules[_NAME]

    application.add(f"sys.modules[{_NAME!r}]", "there was none", undo)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    im2col_step: int = 64,
) -> list[Tensor]:
    """The gradients of values, locations and weights."""
    tensors = value, sampling_locations, attention_weights
    _, by_tensors = PLAIN.forms
    return list(by_tensors.backward(grad_output, *tensors, spatial_shapes, level_start_index, None, [True] * 3, False))
