"""Lets models that exist use this operator, at run time.

A target is replaced only if its signature is the one that is known here. Everything else is left alone, with a
warning that says why.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pathlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import operator
from ._levels import flatten, shared_points
from ._tensor import attend

__all__ = ["patch", "patched", "unpatch"]

_FUNCTION_PARAMETERS = (
    "value",
    "value_spatial_shapes",
    "value_level_start_index",
    "sampling_locations",
    "attention_weights",
    "im2col_step",
)


@dataclass(frozen=True)
class _Replacement:
    """One attribute that was replaced."""

    owner: Any
    attribute: str
    # What was in the owner's own dictionary; `_ABSENT` where it was inherited or not there.
    original: Any
    name: str


_ABSENT = object()
_replacements: list[_Replacement] = []


# What takes the place ----------------------------------------------------------------------------------------


def _transformers_forward(
    self: Any,
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_spatial_shapes_list: list[tuple[int, int]],
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    # The list costs no synchronisation. These models lay their levels out one after the other.
    return attend(value, value_spatial_shapes_list, None, sampling_locations, attention_weights, None, False)


def _plain_function(
    value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights, None, False)


def _point_list_function(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def multi_scale_deformable_attention_v2(
        value: Tensor,
        value_spatial_shapes: Any,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        num_points_list: list[int],
        method: str = "default",
    ) -> Tensor:
        if method != "default":  # Nearest pixels instead of interpolation: another operator.
            return original(value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list, method)
        return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights, num_points_list, False)

    return multi_scale_deformable_attention_v2


def _apply(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int = 64,
) -> Tensor:
    return attend(
        value,
        value_spatial_shapes,
        value_level_start_index,
        sampling_locations,
        attention_weights,
        None,
        False,
    )


def _extension() -> types.ModuleType:
    """A stand-in for the extension that Deformable-DETR and its relatives compile."""

    def ms_deform_attn_backward(
        value: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        grad_output: Tensor,
        im2col_step: int,
    ) -> list[Tensor]:
        shapes = operator.read_integers("spatial_shapes", spatial_shapes)
        starts = operator.read_integers("level_start_index", level_start_index)
        levels = flatten(shapes, starts, shared_points(sampling_locations.shape, None))
        gradients = operator.BACKWARD.default(
            grad_output, value, sampling_locations, attention_weights, levels, [True] * 3, False
        )
        return list(gradients)

    module = types.ModuleType(_EXTENSION, "msdeform in place of the compiled extension")
    module.ms_deform_attn_forward = _apply  # type: ignore[attr-defined]
    module.ms_deform_attn_backward = ms_deform_attn_backward  # type: ignore[attr-defined]
    return module


_EXTENSION = "MultiScaleDeformableAttention"


# Where it is put -----------------------------------------------------------------------------------------------


def _parameters(function: Any) -> tuple[str, ...] | None:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def _is_known(name: str, function: Any, *known: tuple[str, ...]) -> bool:
    found = _parameters(function)
    if found in known:
        return True
    warnings.warn(
        f"msdeform leaves {name} alone: it takes {found}, but {' or '.join(map(str, known))} was expected; this "
        "version is unknown",
        stacklevel=5,
    )
    return False


def _replace(owner: Any, attribute: str, replacement: Any, name: str) -> bool:
    if any(done.name == name for done in _replacements):
        return False
    original = vars(owner).get(attribute, _ABSENT)
    setattr(owner, attribute, replacement)
    _replacements.append(_Replacement(owner, attribute, original, name))
    return True


def _loaded(prefix: str) -> Iterator[types.ModuleType]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and (name == prefix or name.startswith(prefix + ".") or not prefix):
            yield module


# What a model of transformers that has the operator says in its source.
_TRANSFORMERS_MARKS = (b"class MultiScaleDeformableAttention", b"def multi_scale_deformable_attention")
_FORWARD_PARAMETERS = (
    "self",
    "value",
    "value_spatial_shapes",
    "value_spatial_shapes_list",
    "level_start_index",
    "sampling_locations",
    "attention_weights",
    "im2col_step",
)
_PLAIN_PARAMETERS = ("value", "value_spatial_shapes", "sampling_locations", "attention_weights")
_POINT_LIST_PARAMETERS = (*_PLAIN_PARAMETERS, "num_points_list", "method")


def _transformers_modules() -> Iterator[str]:
    """Modules that have the operator, read off their source: every version has more of them, and importing all of
    transformers takes minutes."""
    spec = importlib.util.find_spec("transformers.models")
    for folder in (spec and spec.submodule_search_locations) or ():
        root = pathlib.Path(folder)
        for file in sorted(root.rglob("modeling_*.py")):
            source = file.read_bytes()
            if any(mark in source for mark in _TRANSFORMERS_MARKS):
                yield ".".join(("transformers", "models", *file.relative_to(root).with_suffix("").parts))


def _patch_transformers() -> int:
    for name in _transformers_modules():
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # What it needs is not installed: nobody uses it here.
    count = 0
    for module in _loaded("transformers.models"):
        own = vars(module)
        layer = own.get("MultiScaleDeformableAttention")
        if inspect.isclass(layer) and layer.__module__ == module.__name__:
            name = f"{module.__name__}.MultiScaleDeformableAttention.forward"
            if _is_known(name, getattr(layer, "forward", None), _FORWARD_PARAMETERS):
                count += _replace(layer, "forward", _transformers_forward, name)
        for attribute, known, make in (
            ("multi_scale_deformable_attention", _PLAIN_PARAMETERS, lambda _: _plain_function),
            ("multi_scale_deformable_attention_v2", _POINT_LIST_PARAMETERS, _point_list_function),
        ):
            function = own.get(attribute)
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                name = f"{module.__name__}.{attribute}"
                if _is_known(name, function, known):
                    count += _replace(module, attribute, make(function), name)
    return count


def _patch_functions(prefix: str) -> int:
    """Every autograd function of the family, by its name, in loaded modules; and the slow paths beside them."""
    count = 0
    for module in _loaded(prefix):
        for attribute in ("MSDeformAttnFunction", "MultiScaleDeformableAttnFunction"):
            found = vars(module).get(attribute)
            if not (inspect.isclass(found) and issubclass(found, torch.autograd.Function)):
                continue
            name = f"{found.__module__}.{attribute}.apply"
            if found.__module__ == module.__name__ and _is_known(
                name, getattr(found, "forward", None), ("ctx", *_FUNCTION_PARAMETERS)
            ):
                count += _replace(found, "apply", staticmethod(_apply), name)
        for attribute in ("multi_scale_deformable_attn_pytorch", "ms_deform_attn_core_pytorch"):
            function = vars(module).get(attribute)
            if not inspect.isfunction(function) or function is _plain_function:
                continue
            # In every module that imported it: such names are bound by value.
            name = f"{module.__name__}.{attribute}"
            if _is_known(name, function, _PLAIN_PARAMETERS):
                count += _replace(module, attribute, _plain_function, name)
    return count


def _patch_imported(module: str, prefix: str) -> Callable[[], int]:
    def patch_it() -> int:
        if importlib.util.find_spec(prefix) is None:
            return 0
        try:
            importlib.import_module(module)
        except ImportError as error:
            warnings.warn(f"msdeform leaves {prefix} alone: {module} cannot be imported ({error})", stacklevel=4)
            return 0
        return _patch_functions(prefix)

    return patch_it


def _patch_extension() -> int:
    count = 0
    if _EXTENSION not in sys.modules and importlib.util.find_spec(_EXTENSION) is None:
        sys.modules[_EXTENSION] = _extension()
        _replacements.append(_Replacement(sys.modules, _EXTENSION, _ABSENT, f"sys.modules[{_EXTENSION!r}]"))
        count = 1
    # Whatever package they are in; everybody copied these.
    return count + _patch_functions("")


_FRAMEWORKS: dict[str, Callable[[], int]] = {
    "transformers": lambda: _patch_transformers() if importlib.util.find_spec("transformers") else 0,
    "mmcv": _patch_imported("mmcv.ops.multi_scale_deform_attn", "mmcv"),
    "groundingdino": _patch_imported("groundingdino.models.GroundingDINO.ms_deform_attn", "groundingdino"),
    "detectron2": _patch_extension,
}


def patch(framework: str | None = None) -> list[str]:
    """Makes existing models use `msdeform`; returns what was replaced by this call.

    Args:
        framework: `"transformers"`; `"mmcv"`; `"groundingdino"`; `"detectron2"` for everything built on
            `MSDeformAttnFunction` (Deformable-DETR, DINO, Mask2Former, detrex): modules that are loaded, and, where
            the extension `MultiScaleDeformableAttention` is not installed, a stand-in for it, so that they load at
            all. `None`: all that are installed.

    Models that exist already are changed too, with one exception: transformers' D-FINE and DEIMv2 keep a reference to
    the function they were built with, so build or load them after patching.
    """
    if framework is not None and framework not in _FRAMEWORKS:
        known = ", ".join(f'"{name}"' for name in _FRAMEWORKS)
        raise ValueError(f'unknown framework "{framework}"; known: {known}')
    before = len(_replacements)
    for name in [framework] if framework is not None else _FRAMEWORKS:
        count = _FRAMEWORKS[name]()
        if framework is not None and count == 0 and not any(_belongs(done, name) for done in _replacements):
            warnings.warn(f'nothing to patch for "{framework}": it is not installed or not loaded', stacklevel=2)
    return [done.name for done in _replacements[before:]]


def _belongs(done: _Replacement, framework: str) -> bool:
    return framework == "detectron2" or done.name.startswith(framework)


def patched() -> list[str]:
    """What is replaced at the moment, by its full name."""
    return [done.name for done in _replacements]


def unpatch() -> list[str]:
    """Puts everything back as it was; returns what was put back."""
    names = patched()
    while _replacements:
        done = _replacements.pop()
        if done.owner is sys.modules:
            sys.modules.pop(done.attribute, None)
        elif done.original is _ABSENT:
            delattr(done.owner, done.attribute)
        else:
            setattr(done.owner, done.attribute, done.original)
    return names
