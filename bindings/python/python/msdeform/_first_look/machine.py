"""Facts about this machine, and advice about missing parts."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

import msdeform

OLDEST_TORCH = (2, 4)
PAGE = "https://github.com/msdeform/msdeform/blob/main/bindings/python/docs/troubleshooting.md"


def import_torch() -> tuple[Any, str | None]:
    """PyTorch, or the reason why it cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return None, "not installed: NumPy arrays on the processor; `pip install torch` for tensors and gradients"
        return None, f"is installed and cannot be imported: {error}"
    return torch, None


def look() -> dict[str, Any]:
    """Versions, CPU, driver, NVRTC, packed kernels, GPUs and PyTorch: what `device_info()` has, and more."""
    torch, missing = import_torch()
    return {
        "msdeform": msdeform.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "torch": {
            "version": torch and str(torch.__version__),
            "cuda": torch and torch.version.cuda,
            "sees_gpus": torch.cuda.device_count() if torch and torch.cuda.is_available() else 0,
            "missing": missing,
        },
        **msdeform.device_info(),
    }


def lines(machine: dict[str, Any]) -> list[str]:
    """The same facts as lines of text."""
    torch, cuda = machine["torch"], machine["cuda"]
    pytorch = torch["version"] and f"{torch['version']} ({'CUDA ' + torch['cuda'] if torch['cuda'] else 'no CUDA'})"
    nvrtc = cuda["nvrtc"]
    versions = f"{machine['msdeform']}, Python {machine['python']}, NumPy {machine['numpy']}, {machine['system']}"
    rows = [
        ("msdeform", versions),
        ("PyTorch", pytorch or torch["missing"]),
        ("processor", f"{machine['cpu']['cores']} cores, {machine['cpu']['instructions']}"),
        ("driver", f"CUDA {cuda['driver']}" if cuda["driver"] else cuda["missing"]),
        ("NVRTC", f"{nvrtc['version']}, {nvrtc['path']}" if nvrtc["version"] else nvrtc["missing"]),
        ("kernels", _pack(cuda["kernel_pack"])),
    ]
    rows += ((f"cuda:{number}", _gpu(gpu)) for number, gpu in enumerate(cuda["gpus"]))
    return [f"{name:<10} {words}" for name, words in rows]


def _pack(pack: dict[str, Any]) -> str:
    if pack["summary"]:
        return f"packed: {pack['summary']}, {pack['path']}"
    return f"none packed: {pack['ignored']}" if pack["ignored"] else "none packed; compiled when they are first needed"


def _gpu(gpu: dict[str, Any]) -> str:
    words = [str(gpu.get("name", "a GPU"))]
    if gpu.get("compute_capability"):
        words.append(f"compute capability {gpu['compute_capability']}")
    if gpu.get("missing"):
        words.append(f"cannot be used: {gpu['missing']}")
    return ", ".join(words)


def advice(machine: dict[str, Any]) -> list[str]:
    """Advice for using all of the package on this machine, most important first."""
    torch, cuda = machine["torch"], machine["cuda"]
    found = []
    version = tuple(int(part) for part in (torch["version"] or "").split("+")[0].split(".")[:2] if part.isdigit())
    if version and version < OLDEST_TORCH:
        found.append(f"PyTorch {torch['version']} is too old, 2.4 and newer are supported: `pip install -U torch`")
    if torch["missing"] and "cannot be imported" in torch["missing"]:
        found.append(f"PyTorch {torch['missing']}; install it again")
    # A machine without a driver has no usable GPU, so there is nothing to fix.
    if cuda["driver"]:
        if cuda["nvrtc"]["missing"] and cuda["kernel_pack"]["summary"]:
            found.append(f"only calls whose kernels are packed run on GPUs: {cuda['nvrtc']['missing']}")
        elif cuda["nvrtc"]["missing"]:
            found.append(f"GPUs are not used: {cuda['nvrtc']['missing']}")
        if cuda["kernel_pack"]["ignored"]:
            found.append(f"the kernel pack is not used: {cuda['kernel_pack']['ignored']}")
        if torch["version"] and not torch["cuda"]:
            found.append("this PyTorch is built without CUDA: its tensors stay on the processor; install a CUDA build")
        elif torch["version"] and not torch["sees_gpus"]:
            found.append(
                f"PyTorch (CUDA {torch['cuda']}) sees no GPU, the driver is for CUDA {cuda['driver']}: update the "
                "driver, or install a PyTorch for an older CUDA; CUDA_VISIBLE_DEVICES hides GPUs too"
            )
    elif cuda["missing"] and "cannot be loaded" not in cuda["missing"]:
        found.append(f"GPUs are not used: {cuda['missing']}")
    return found


def gpus(machine: dict[str, Any]) -> list[str]:
    """The GPUs that can compute."""
    cuda = machine["cuda"]
    if not cuda["driver"] or (cuda["nvrtc"]["missing"] and not cuda["kernel_pack"]["summary"]):
        return []
    return [f"cuda:{number}" for number, gpu in enumerate(cuda["gpus"]) if not gpu.get("missing")]
