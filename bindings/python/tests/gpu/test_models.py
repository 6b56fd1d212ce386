"""transformers' models on a GPU, with and without the patch: the same outputs and gradients.

What the patch saves in time and memory is measured by benches/models.py, on models of full size.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msdeform
import pytest
import torch
from oracle import relative_error
from test_patching import MODELS, run
from torch import Tensor

# Relative L2 of the last hidden state and of all gradients, patched against unpatched. Mask2Former's masks, decided by
# a threshold, magnify rounding in the gradients. Under autocast both sides round in every layer, in their own places:
# they may differ by what autocast itself changes in the unpatched model, measured in the same test, with some room, and
# never by more than a tenth.
BOUNDS, ROOM, MOST = (1e-3, 3e-2), 2.0, 0.1


def normalise(model: Any, pixels: Tensor) -> None:
    """Gives every batch normalisation the statistics of these images. With those of a fresh model activations grow from
    layer to layer, out of the range of float16."""

    def adopt(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        norm.running_mean.copy_(inputs[0].mean(dim=(0, 2, 3)))
        norm.running_var.copy_(inputs[0].var(dim=(0, 2, 3)))

    norms = [module for module in model.modules() if getattr(module, "running_var", None) is not None]
    hooks = [norm.register_forward_pre_hook(adopt) for norm in norms]
    with torch.no_grad():
        model(pixel_values=pixels)
    for hook in hooks:
        hook.remove()


def results(model: Any, name: str, pixels: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """The last hidden state, and all gradients in one row."""
    with nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype):
        output, gradients = run(model, name, pixels)
    return output, torch.cat([gradients[key].flatten() for key in sorted(gradients)])


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_patch_changes_nothing_but_time_and_memory(name: str, dtype: torch.dtype | None) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = MODELS[name][0]().eval().cuda()
    pixels = torch.randn(2, 3, 256, 320, device="cuda")
    msdeform.unpatch()
    normalise(model, pixels)
    exact = results(model, name, pixels, None)
    before = exact if dtype is None else results(model, name, pixels, dtype)
    msdeform.patch("transformers")
    try:
        after = results(model, name, pixels, dtype)
    finally:
        msdeform.unpatch()
    for part, bound in enumerate(BOUNDS):
        error, cost = relative_error(after[part], before[part]), relative_error(before[part], exact[part])
        assert error <= (bound if dtype is None else min(ROOM * cost, MOST)), (error, cost)
