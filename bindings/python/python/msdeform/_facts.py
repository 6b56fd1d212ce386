"""Facts about the package and the machine, as plain data: variants, devices, workloads, times."""

from __future__ import annotations

import json
from typing import Any

from . import _native


def variants() -> list[dict[str, Any]]:
    """Every implementation in the package: id, direction, device, dtypes, layouts, idea, why, source."""
    found: list[dict[str, Any]] = json.loads(_native.variants_json())
    return found


def device_info() -> dict[str, Any]:
    """The package's build, the CPU, the CUDA driver, NVRTC and every GPU. A missing part has the reason."""
    found: dict[str, Any] = json.loads(_native.device_info_json())
    return found


def workloads() -> list[dict[str, Any]]:
    """The built-in workloads of `bench`: shapes of known models, each with the reason why it is included."""
    found: list[dict[str, Any]] = json.loads(_native.workloads_json())
    return found


def bench(
    workload: str = "ddetr_dec",
    *,
    device: str | None = None,
    dtype: str = "f32",
    direction: str = "forward",
    variant: str | None = None,
    seconds: float = 1.0,
    threads: int | None = None,
    batch: int | None = None,
) -> dict[str, Any]:
    """Verifies and times one built-in workload, without Python or PyTorch in the timing.

    Args:
        workload: a name of `workloads()`.
        device: `"cpu"`, `"cuda:0"`, ...; by default the first GPU, or the CPU if there is no GPU.
        dtype: `"f32"`, `"f16"` or `"bf16"`.
        direction: `"forward"` or `"backward"`.
        variant: an id of `variants()`; by default the one that a call would use.
        seconds: how long to take samples.
        threads: number of CPU threads; by default one per core.
        batch: images, instead of the workload's own.

    Returns:
        The measurement as in a record: `median_us`, `mad_us`, `samples_us`, `rel_l2`, `variant`, `device`, `passed`
        and more.
    """
    found: dict[str, Any] = json.loads(
        _native.bench_json(workload, device, dtype, direction, variant, seconds, threads, batch)
    )
    return found
