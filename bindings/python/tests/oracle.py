"""The operator by `grid_sample` in float64, and the inputs of tests. Shares no code with the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

# There, without them, ordinary calls take the long way: nothing native is left to look at.
needs_native_tensors = pytest.mark.skipif(
    not hasattr(Tensor, "__dlpack_c_exchange_api__"), reason="PyTorch shows tensors to native code from 2.10 on"
)

# Relative L2 error that the package promises, by the format of the values.
BOUNDS = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3, torch.float64: 1e-12}


@dataclass(frozen=True)
class Case:
    """One call."""

    value: Tensor
    shapes: list[tuple[int, int]]
    locations: Tensor
    weights: Tensor
    points: list[int] | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.value, self.locations, self.weights

    def to(self, *arguments: Any, **keywords: Any) -> Case:
        moved = (tensor.detach().to(*arguments, **keywords) for tensor in self.tensors)
        value, locations, weights = moved
        return replace(self, value=value, locations=locations, weights=weights)

    def requires_grad(self) -> Case:
        value, locations, weights = (tensor.detach().clone().requires_grad_() for tensor in self.tensors)
        return replace(self, value=value, locations=locations, weights=weights)


def make_case(
    batch: int = 2,
    shapes: tuple[tuple[int, int], ...] = ((9, 12), (5, 6), (1, 3)),
    heads: int = 4,
    channels: int = 8,
    queries: int = 11,
    points: int | list[int] = 3,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Random inputs; some locations lie outside, none within 0.01 pixel of a border between cells, where the
    gradient jumps."""
    counts = [points] * len(shapes) if isinstance(points, int) else points
    generator = torch.Generator().manual_seed(7)
    pixels = sum(height * width for height, width in shapes)
    value = torch.randn(batch, pixels, heads, channels, generator=generator)
    pieces = []
    for (height, width), count in zip(shapes, counts, strict=True):
        size = torch.tensor([width, height])
        cell = (torch.rand(batch, queries, heads, count, 2, generator=generator) * (size + 2)).floor() - 1
        fraction = 0.05 + 0.9 * torch.rand(batch, queries, heads, count, 2, generator=generator)
        pieces.append((cell + fraction + 0.5) / size)
    locations = torch.cat(pieces, dim=3)
    weights = torch.randn(batch, queries, heads, sum(counts), generator=generator).softmax(-1)
    if isinstance(points, int):
        locations = locations.unflatten(3, (len(shapes), points))
        weights = weights.unflatten(3, (len(shapes), points))
    point_list = None if isinstance(points, int) else points
    return Case(value, list(shapes), locations, weights, point_list).to(dtype=dtype, device=device)


def reference(case: Case) -> Tensor:
    """The output in float64, differentiable."""
    value, locations, weights = (tensor.double() for tensor in case.tensors)
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    counts = case.points or [locations.shape[4]] * len(case.shapes)
    locations = locations.reshape(batch, queries, heads, sum(counts), 2)
    weights = weights.reshape(batch, queries, heads, sum(counts))
    output = torch.zeros(batch, queries, heads, channels, dtype=torch.float64, device=value.device)
    sizes = [height * width for height, width in case.shapes]
    for pixels, (height, width), grid, weight in zip(
        value.split(sizes, dim=1),
        case.shapes,
        locations.split(counts, dim=3),
        weights.split(counts, dim=3),
        strict=True,
    ):
        image = pixels.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = (2 * grid - 1).transpose(1, 2).flatten(0, 1)
        sampled = torch.nn.functional.grid_sample(
            image, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )
        sampled = sampled.unflatten(0, (batch, heads))
        output = output + torch.einsum("nmdqp,nqmp->nqmd", sampled, weight)
    return output.flatten(2)


def reference_gradients(case: Case, grad_output: Tensor) -> tuple[Tensor, ...]:
    exact = case.to(torch.float64).requires_grad()
    return torch.autograd.grad(reference(exact), exact.tensors, grad_output.double())


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative L2; NaN stays NaN, which no bound admits."""
    found, expected = found.detach().double(), expected.detach().double()
    norm = expected.norm()
    difference = (found - expected).norm()
    return float(difference / norm) if norm > 0 else float(difference)


def assert_close(found: Tensor, expected: Tensor, bound: float, what: str = "output") -> None:
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    error = relative_error(found, expected)
    assert error <= bound, f"{what}: relative error {error:.2e}, allowed {bound:.0e}"
