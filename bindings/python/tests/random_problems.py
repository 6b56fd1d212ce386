"""Random problems that `cargo run --package msdeform-lab --example write_cases` wrote: the same generator, the same
numbers and the same oracle as for every other backend. `MSDEFORM_CASES` names their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msdeform
import numpy as np
import pytest
import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ANY, NUMBER, NAN, INFINITE = range(4)


class Problems:
    """The problems of a folder."""

    def __init__(self, folder: Path) -> None:
        document = json.loads((folder / "cases.json").read_text())
        self.seed: str = document["seed"]
        self.cases: list[dict[str, Any]] = document["cases"]
        self._bytes = np.fromfile(folder / "cases.bin", dtype=np.uint8)

    def tensor(self, described: dict[str, Any], device: str) -> torch.Tensor:
        """As it lies in memory: strides, and elements before the first one."""
        dtype = DTYPES[described["dtype"]]
        start = described["at"]
        # A copy, because a tensor shares the array's memory and would be written to.
        stored = torch.empty(0, dtype=dtype)
        if described["bytes"] > 0:
            stored = torch.from_numpy(self._bytes[start : start + described["bytes"]].copy()).view(dtype)
        offset = described["offset"]
        memory = torch.full((offset + stored.numel(),), float("nan"), dtype=dtype, device=device)
        memory[offset:] = stored.to(device)
        return memory.as_strided(described["shape"], described["strides"], offset)

    def check(self, described: dict[str, Any], found: torch.Tensor) -> str | None:
        """What is wrong, if anything."""
        count = described["elements"]
        wanted = self._bytes[described["at"] :][: 8 * count].view(np.float64)
        classes = self._bytes[described["classes"] :][:count]
        numbers = found.detach().double().cpu().contiguous().numpy().reshape(-1)
        if numbers.size != count:
            return f"{numbers.size} elements of {count}"
        if not np.isnan(numbers[classes == NAN]).all():
            return "a number where NaN should be"
        infinite = classes == INFINITE
        if not (numbers[infinite] == np.copysign(np.inf, wanted[infinite])).all():
            return "finite where the format ends"
        compared = classes == NUMBER
        error = float(np.linalg.norm(numbers[compared] - wanted[compared]))
        # Written so that NaN fails.
        if error == 0.0 or error <= described["allowed"]:
            return None
        return f"error {error:.2e}, allowed {described['allowed']:.2e}"


def load() -> Problems:
    """The problems that this run was given; skips the test where there are none."""
    folder = os.environ.get("MSDEFORM_CASES")
    if not folder:
        pytest.skip("MSDEFORM_CASES is not set: no random problems were written")
    return Problems(Path(folder))


def run(problems: Problems, case: dict[str, Any], device: str) -> list[str]:
    """Computes a problem; returns what is wrong."""
    inputs = {name: problems.tensor(tensor, device) for name, tensor in case["inputs"].items()}
    wants = (case["gradients"] or "").split("+")
    leaves = {name: inputs[name].detach().requires_grad_(name in wants) for name in ("value", "locations", "weights")}
    output = msdeform.ms_deform_attn(
        leaves["value"],
        [tuple(size) for size in case["levels"]],
        torch.tensor(case["starts"], dtype=torch.int64),
        leaves["locations"],
        leaves["weights"],
        points=case["points"],
        deterministic=case["mode"] == "deterministic",
    )
    if case["gradients"] is None:
        found = {"output": output}
    else:
        upstream = inputs["grad_output"].flatten(2) if output.numel() else torch.zeros_like(output)
        asked = [leaf for leaf in leaves.values() if leaf.requires_grad]
        gradients = torch.autograd.grad(output, asked, upstream)
        names = [f"grad_{name}" for name, leaf in leaves.items() if leaf.requires_grad]
        found = dict(zip(names, gradients, strict=True))
    faults = []
    for name, described in case["expected"].items():
        fault = problems.check(described, found[name])
        if fault is not None:
            faults.append(f"{name}: {fault}: {case['line']}")
    return faults


def run_all(device: str) -> None:
    """Every problem of this run on a device; fails with the lines of those that are wrong."""
    problems = load()
    faults = [fault for case in problems.cases for fault in run(problems, case, device)]
    assert not faults, f"seed {problems.seed}, {len(faults)} of {len(problems.cases)}:\n" + "\n".join(faults[:10])
