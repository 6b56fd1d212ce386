"""One pass of a model, and what can be said of it: results, errors, memory, kernels.

`Switch` exchanges one way to compute for another without patching anew, between two passes.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import msdeform
import torch
from msdeform.patching import replacing
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from zoo import Model

DTYPES = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}

# Relative L2 of output and gradients, patched against unpatched in the same format. In float32 they differ by rounding
# alone, which Mask2Former's masks, decided by a threshold, magnify in the gradients. Under autocast both round in every
# layer, each in its own places: they may differ by twice what autocast itself changes in the unpatched model, and never
# by more than a tenth.
BOUNDS, ROOM, MOST = (1e-3, 3e-2), 2.0, 0.1

# What a loss is multiplied by: the first under which the unpatched model's gradients are finite, as
# torch.amp.GradScaler looks for it. float16 ends at 65504.
LOSS_SCALES = (1.0, 2.0**-8, 2.0**-16)

# How a model computes: as it is, with attention functions replaced alone (`patch(fuse=False)`), with whole layers
# replaced too (`patch()`).
BEFORE, PLAIN, AFTER = "before", "plain", "after"
WAYS = (BEFORE, PLAIN, AFTER)

Results = tuple[Tensor, ...]
# A pass: a loss scale in, the output out.
Step = Callable[[float], Tensor]


class Switch:
    """One way or another.

    `patch()` makes new code whenever it is called, which compiled models would be compiled anew for, and tries every
    function, which would disturb what is timed. So the code of all ways is kept, and exchanged.
    """

    def __init__(self, package: str) -> None:
        msdeform.unpatch()
        if not msdeform.patch(package):
            raise RuntimeError(f"nothing of {package} is patched: {msdeform.patched(verbose=True)}")
        self._codes: dict[types.FunctionType, dict[str, types.CodeType]] = {}
        for function, original in replacing._replaced.items():
            old, new = original.__code__, function.__code__
            self._codes[function] = {BEFORE: old, PLAIN: old if function in replacing._fused else new, AFTER: new}
        # Where no layer is known, functions alone are all that there is.
        self.ways = WAYS if replacing._fused else (BEFORE, AFTER)

    def set(self, way: str) -> None:
        """Computes this way from here on."""
        for function, codes in self._codes.items():
            function.__code__ = codes[way]

    def close(self) -> None:
        """Leaves nothing behind."""
        self.set(AFTER)
        msdeform.unpatch()


def prepare(model: Model, device: str, images: Any) -> tuple[Any, Tensor]:
    """The model on its device, and its images."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    network = model.build(images).eval().to(device)
    with torch.no_grad():
        # Fresh models have offsets that hardly depend on the query, and equal weights.
        for key, parameter in network.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    pixels = torch.randn(images.images, 3, images.height, images.width, device=device)
    _normalise(network, pixels)
    return network, pixels


def _normalise(network: Any, pixels: Tensor) -> None:
    """Gives every batch normalisation the statistics of these images. With those of a fresh model activations grow from
    layer to layer, out of the range of float16."""

    def adopt(norm: Any, inputs: Results) -> None:
        # Without a spread that can be divided by where a level is a pixel or two.
        norm.running_mean.copy_(inputs[0].mean(dim=(0, 2, 3)))
        norm.running_var.copy_(inputs[0].var(dim=(0, 2, 3), correction=0).clamp_min(1e-2))

    norms = [module for module in network.modules() if getattr(module, "running_var", None) is not None]
    hooks = [norm.register_forward_pre_hook(adopt) for norm in norms]
    with torch.no_grad():
        network(pixels)
    for hook in hooks:
        hook.remove()


def make_step(model: Model, call: Callable[[Tensor], Any], pixels: Tensor, work: str, dtype: str) -> Step:
    """A pass of a model that `call` calls, as it is or compiled."""
    device, autocast = pixels.device.type, DTYPES[dtype]

    def infer(_: float) -> Tensor:
        with torch.no_grad():
            return model.output(call(pixels))

    def train(loss_scale: float) -> Tensor:
        """Forward and backward; the optimizer would be the same on both sides."""
        output = model.output(call(pixels))
        # Not the square: outputs are normalised, their sum of squares hardly depends on anything.
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
        (output * (direction * loss_scale)).sum().backward()
        return output.detach()

    one = {"inference": infer, "training": train}[work]

    def step(loss_scale: float) -> Tensor:
        with nullcontext() if autocast is None else torch.autocast(device, dtype=autocast):
            return one(loss_scale)

    return step


def results(network: Any, output: Tensor, loss_scale: float) -> Results:
    """The output and, after training, all gradients in one row; in host memory, not to count as the model's."""
    parameters = list(network.parameters())
    if all(parameter.grad is None for parameter in parameters):
        return (output.cpu().clone(),)
    # A parameter that the output does not depend on has no gradient; of a compiled model it has zeros.
    gradients = [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in parameters]
    return output.cpu().clone(), torch.cat(gradients).cpu() / loss_scale


def find_loss_scale(network: Any, step: Step) -> tuple[float, Results]:
    """The first scale under which everything is finite, or the last one, and the results under it."""
    for scale in LOSS_SCALES:
        network.zero_grad()
        found = results(network, step(scale), scale)
        if are_finite(found) or len(found) == 1:
            break
    return scale, found


def are_finite(tensors: Results) -> bool:
    """Whether there is anything to compare."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def compare(found: Results, expected: Results, exact: Results, dtype: str) -> dict[str, Any]:
    """Errors and their bounds, of the output and of the gradients."""
    # Not finite: autocast overflows in the model as it is; then there is nothing to compare with.
    row: dict[str, Any] = {"is_comparable": are_finite(expected)}
    for part, (what, bound) in enumerate(zip(("output", "gradient"), BOUNDS, strict=True)):
        if part < len(exact):
            row[f"{what}_error"] = _relative_error(found[part], expected[part])
            cost = _relative_error(expected[part], exact[part])
            row[f"{what}_bound"] = bound if DTYPES[dtype] is None else min(ROOM * (cost or 0.0), MOST)
    return row


def _relative_error(found: Tensor, expected: Tensor) -> float | None:
    """Relative L2; `None` where it is not a number, which no bound admits."""
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    return error if math.isfinite(error) else None


def synchronise(device: str) -> None:
    """Waits for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_mib(device: str, run: Callable[[], object]) -> float:
    """The most memory that tensors take in a pass.

    On a GPU, PyTorch's allocator reports the peak, with weights. PyTorch has no peak counter for a CPU, so the function
    adds up the allocations and releases that the profiler records, without weights. The profiler does not see scratch
    memory that libraries allocate for themselves.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 2**20
    held = most = 0
    events = _events([ProfilerActivity.CPU], run, with_memory=True)
    changes = [event for event in events if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20


def count_kernels(run: Callable[[], object]) -> int:
    """Kernels that a pass has a GPU run, copies and fills not counted."""
    events = _events([ProfilerActivity.CPU, ProfilerActivity.CUDA], run)
    # Copies and fills are no kernels; ranges that a program names are shown on the GPU as well.
    ranges = {event.name() for event in events if event.device_type() != DeviceType.CUDA}
    names = [event.name() for event in events if event.device_type() == DeviceType.CUDA]
    return sum(name not in ranges and not name.startswith(("Memcpy", "Memset")) for name in names)


class Calls(NamedTuple):
    """How often the operators are called in a pass."""

    # Any of them.
    all: int
    # The one from offsets, which replaces whole layers.
    fused: int


def count_calls(run: Callable[[], object]) -> Calls:
    """How often they are called, wherever from."""
    names = [event.name() for event in _events([ProfilerActivity.CPU], run)]
    ours = [name for name in names if name.startswith("msdeform::")]
    return Calls(len(ours), sum("from_offsets" in name for name in ours))


def _events(activities: list[ProfilerActivity], run: Callable[[], object], with_memory: bool = False) -> list[Any]:
    with profile(activities=activities, profile_memory=with_memory) as found:
        run()
        synchronise("cuda" if torch.cuda.is_available() else "cpu")
    assert found.profiler is not None and found.profiler.kineto_results is not None
    return list(found.profiler.kineto_results.events())
