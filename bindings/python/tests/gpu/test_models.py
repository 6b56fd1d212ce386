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
from patched_models import MODELS, run
from torch import Tensor

# Relative L2 of the last hidden state and of all gradients, patched against unpatched. Mask2Former's masks, decided by
# a threshold, magnify rounding in the gradients. Under autocast both sides round in every layer, in their own places:
# they may differ by what autocast itself changes in the unpatched model, measured in the same test, with some room, and
# never by more than a tenth.
BOUNDS, ROOM, MOST = (1e-3, 3e-2), 2.0, 0.1

# What the loss is multiplied by: the first under which the unpatched model's gradients are finite, as
# torch.amp.GradScaler looks for it. float16 ends at 65504.
LOSS_SCALES = (1.0, 2.0**-8, 2.0**-16)


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


def results(
    model: Any, name: str, pixels: Tensor, dtype: torch.dtype | None, loss_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The last hidden state, and all gradients in one row."""
    with nullcontext() if dtype is None else torch.autocast(pixels.device.type, dtype=dtype):
        output, gradients = run(model, name, pixels, loss_scale)
    return output, torch.cat([gradients[key].flatten() for key in sorted(gradients)]) / loss_scale


def finite_results(model: Any, name: str, pixels: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], float]:
    """The same with the first loss scale under which they are finite."""
    for loss_scale in LOSS_SCALES:
        found = results(model, name, pixels, dtype, loss_scale)
        if all(bool(part.isfinite().all()) for part in found):
            return found, loss_scale
    pytest.fail(f"unpatched, {name} is not finite in {dtype} under any loss scale: nothing was compared")


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
    before, loss_scale = (exact, 1.0) if dtype is None else finite_results(model, name, pixels, dtype)
    msdeform.patch("transformers")
    try:
        after = results(model, name, pixels, dtype, loss_scale)
    finally:
        msdeform.unpatch()
    for part, bound in enumerate(BOUNDS):
        error, cost = relative_error(after[part], before[part]), relative_error(before[part], exact[part])
        assert error <= (bound if dtype is None else min(ROOM * cost, MOST)), (error, cost)
