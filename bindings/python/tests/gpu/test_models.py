"""transformers' models on a GPU, with and without the patch: the same outputs, and what it saves.

`MSDEFORM_MODELS_JSON=file` writes times and peak memory there.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any

import msdeform
import pytest
import torch
from oracle import relative_error
from test_patching import MODELS, run

# Relative L2 of the last hidden state, patched against unpatched. In half precision both sides round in every layer:
# the bound is what autocast itself costs against float32, measured in the same test, with some room.
BOUND_F32 = 1e-3
ROOM = 2.0


def timed(model: Any, name: str, pixels: torch.Tensor, dtype: torch.dtype | None) -> dict[str, Any]:
    def step() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if dtype is None:
            return run(model, name, pixels)
        with torch.autocast("cuda", dtype=dtype):
            return run(model, name, pixels)

    output, gradients = step()
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return {
        "output": output,
        "gradients": torch.cat([gradients[key].flatten() for key in sorted(gradients)]),
        "step_ms": statistics.median(times),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
    }


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_patch_changes_nothing_but_time_and_memory(name: str, dtype: torch.dtype | None) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = MODELS[name][0]().eval().cuda()
    pixels = torch.randn(2, 3, 512, 640, device="cuda")
    msdeform.unpatch()
    exact = timed(model, name, pixels, None)
    before = exact if dtype is None else timed(model, name, pixels, dtype)
    msdeform.patch("transformers")
    try:
        after = timed(model, name, pixels, dtype)
    finally:
        msdeform.unpatch()
    if dtype is None:
        error = relative_error(after["output"], before["output"])
        assert error <= BOUND_F32, error
        assert relative_error(after["gradients"], before["gradients"]) <= 10 * BOUND_F32
    else:
        # Against float32: patched must not be worse than unpatched.
        cost = relative_error(before["output"], exact["output"])
        error = relative_error(after["output"], exact["output"])
        assert error <= ROOM * cost, (error, cost)
    row = {
        "model": name,
        "dtype": "f32" if dtype is None else str(dtype).removeprefix("torch."),
        "relative_error": error,
        **{f"{what}_before": before[what] for what in ("step_ms", "peak_mib")},
        **{f"{what}_after": after[what] for what in ("step_ms", "peak_mib")},
    }
    print(json.dumps(row))
    if path := os.environ.get("MSDEFORM_MODELS_JSON"):
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
