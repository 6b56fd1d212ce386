"""A framework as everybody copied it, for tests of what `patch()` does with frameworks in general."""

from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from oracle import assert_close, make_case, reference
from patched_models import CountCalls
from surroundings import MADE_UP

FRAMEWORK_NAME, _ = MADE_UP

# A framework as everybody copied it: an autograd function around a compiled extension, and a slow path. The slow path
# can be made to compute something else.
SOURCE = """
import torch
import torch.nn.functional as F

class MSDeformAttnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {parameters}):
        raise RuntimeError("the extension was not built")

def ms_deform_attn_core_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
    batch, _, heads, channels = value.shape
    queries, points = sampling_locations.shape[1], sampling_locations.shape[4]
    sampled = []
    for level, piece in enumerate(value.split([height * width for height, width in value_spatial_shapes], dim=1)):
        height, width = value_spatial_shapes[level]
        image = piece.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = 2 * sampling_locations[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
        sampled.append(F.grid_sample(image, grid, padding_mode="{padding}", align_corners=False))
    weights = attention_weights.transpose(1, 2).reshape(batch * heads, 1, queries, -1)
    output = (torch.cat(sampled, dim=-1) * weights).sum(-1)
    return output.view(batch, heads * channels, queries).transpose(1, 2)
"""

KNOWN = "value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step"
STARTS = [0, 108, 138]
COUNT = itertools.count()


def framework(parameters: str = KNOWN, padding: str = "zeros") -> types.ModuleType:
    """A loaded module of such a framework."""
    # Of its own name: PyTorch's compiler remembers modules by theirs.
    module = types.ModuleType(f"{FRAMEWORK_NAME}.functions{next(COUNT)}")
    exec(SOURCE.format(parameters=parameters, padding=padding), vars(module))
    sys.modules[module.__name__] = module
    return module


def write_framework(folder: Path, monkeypatch: pytest.MonkeyPatch, padding: str = "zeros") -> None:
    """The same as a file that can be imported."""
    package = folder / FRAMEWORK_NAME
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "functions.py").write_text(SOURCE.format(parameters=KNOWN, padding=padding))
    monkeypatch.syspath_prepend(str(folder))


def is_ours(function: Any) -> bool:
    """Whether a call of a slow path ends up in the operator, and gives what it should."""
    case = make_case()
    with CountCalls() as count:
        assert_close(function(case.value, case.shapes, case.locations, case.weights), reference(case), 1e-5)
    return count.forward > 0
