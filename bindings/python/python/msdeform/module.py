"""The attention layer of Deformable-DETR around the operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._levels import given_points, plain_shapes
from ._tensor import check_shape_tensor, shapes_of_tensors
from ._tracing import is_traced
from .from_offsets import ms_deform_attn_from_offsets

if TYPE_CHECKING:
    from ._typing import Shapes, Starts

__all__ = ["MSDeformAttn"]


def _wrong_shape(name: str, tensor: Tensor, expected: str) -> ValueError:
    return ValueError(f"`{name}` has shape {list(tensor.shape)}, expected {expected}")


def _by_the_names_here(error: Exception) -> Exception:
    """An error of the function, with the names that its arguments have in the layer."""
    words = str(error).replace("`value`", "`input_flatten`")
    for name in ("spatial_shapes", "level_start_index"):
        words = words.replace(f"`{name}`", f"`input_{name}`")
    return type(error)(words)


class MSDeformAttn(nn.Module):
    """Multi-scale deformable attention with its projections.

    Parameters have the names and shapes of Deformable-DETR's module, so checkpoints of that module load. Results are
    the same.

    Args:
        d_model: channels of queries and values, a multiple of `n_heads`.
        n_levels: levels of the feature pyramid.
        n_heads: attention heads.
        n_points: sampling points of a head on each level; a list gives a number for each level.
        deterministic: `True` makes gradients bitwise reproducible. `None` follows
            `torch.use_deterministic_algorithms`.
    """

    def __init__(
        self,
        d_model: int = 256,
        n_levels: int = 4,
        n_heads: int = 8,
        n_points: int | Sequence[int] = 4,
        *,
        deterministic: bool | None = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model < 1 or d_model % n_heads:
            raise ValueError(f"`d_model` is {d_model}; expected a positive multiple of `n_heads`, {n_heads}")
        given = given_points(n_points, "n_points")
        points = [given] * n_levels if isinstance(given, int) else given
        if len(points) != n_levels:
            raise ValueError(f"`n_points` is {n_points}; expected a number, or a list of {n_levels}, one per level")
        self.d_model = d_model
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = given
        self.deterministic = bool(deterministic)
        self._points = points
        samples = n_heads * sum(points)
        self.sampling_offsets = nn.Linear(d_model, samples * 2)
        self.attention_weights = nn.Linear(d_model, samples)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets initial values: each head looks in its own direction, each point further; all weights are equal."""
        nn.init.zeros_(self.sampling_offsets.weight)
        angles = torch.arange(self.n_heads, dtype=torch.float32) * (2.0 * math.pi / max(self.n_heads, 1))
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)
        # Directions end on a square around the reference point, not on a circle.
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)
        steps = [float(point + 1) for count in self._points for point in range(count)]
        bias = directions[:, None, :] * torch.tensor(steps, dtype=torch.float32)[None, :, None]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(bias.flatten())
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for projection in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: Shapes,
        input_level_start_index: Starts | None = None,
        input_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Computes the attention.

        Args:
            query: `[N, Lq, d_model]`.
            reference_points: `[N, Lq, L, 2]`, (x, y) in [0, 1] with (0, 0) the upper left corner; or `[N, Lq, L, 4]`,
                boxes (x, y, width, height).
            input_flatten: `[N, S, d_model]`, the pixels of all levels.
            input_spatial_shapes: (H, W) of each level, a list or an integer tensor `[L, 2]`.
            input_level_start_index: first pixel of each level `[L]`; `None` if levels follow each other.
            input_padding_mask: `[N, S]`, true for pixels that are padding and count as zero.

        Returns:
            `[N, Lq, d_model]`.
        """
        self._check(query, reference_points, input_flatten, input_padding_mask)
        batch, queries, _ = query.shape
        pixels = input_flatten.shape[1]
        try:
            input_spatial_shapes = shapes_of_tensors(input_spatial_shapes, is_traced())
            if not hasattr(input_spatial_shapes, "__len__"):
                input_spatial_shapes = plain_shapes(input_spatial_shapes)
            if len(input_spatial_shapes) != self.n_levels:
                found = len(input_spatial_shapes)
                raise ValueError(f"`spatial_shapes` has {found} levels, expected {self.n_levels}")
            if isinstance(input_spatial_shapes, Tensor):
                check_shape_tensor("spatial_shapes", input_spatial_shapes)
        except (TypeError, ValueError) as error:
            raise _by_the_names_here(error) from error
        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask[..., None], 0.0)
        value = value.view(batch, pixels, self.n_heads, self.d_model // self.n_heads)
        samples = sum(self._points)
        offsets = self.sampling_offsets(query).view(batch, queries, self.n_heads, samples, 2)
        logits = self.attention_weights(query).view(batch, queries, self.n_heads, samples)
        try:
            output = ms_deform_attn_from_offsets(
                value,
                input_spatial_shapes,
                reference_points,
                offsets,
                logits,
                level_start_index=input_level_start_index,
                points=self._points,
                deterministic=self.deterministic,
            )
        except (TypeError, ValueError) as error:
            raise _by_the_names_here(error) from error
        result: Tensor = self.output_proj(output)
        return result

    def _check(self, query: Tensor, reference_points: Tensor, pixels: Tensor, mask: Tensor | None) -> None:
        """Refuses arguments that are no tensors or have a wrong shape. The error names the argument."""
        given: dict[str, Any] = {"query": query, "reference_points": reference_points, "input_flatten": pixels}
        if mask is not None:
            given["input_padding_mask"] = mask
        for name, tensor in given.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"`{name}` is a {type(tensor).__module__}.{type(tensor).__name__}, expected a tensor")
        # Messages are formatted only when raised, because older compilers treat a printed size as a constant.
        if query.dim() != 3 or query.shape[2] != self.d_model:
            raise _wrong_shape("query", query, f"[batch, queries, {self.d_model}]")
        batch, queries, _ = query.shape
        if pixels.dim() != 3 or pixels.shape[0] != batch or pixels.shape[2] != self.d_model:
            raise _wrong_shape("input_flatten", pixels, f"[{batch}, pixels, {self.d_model}]")
        shape = reference_points.shape
        if len(shape) != 4 or shape[2] != self.n_levels or shape[3] not in (2, 4) or shape[1] not in (1, queries):
            form = f"[{batch}, {queries}, {self.n_levels}, 2] or [{batch}, {queries}, {self.n_levels}, 4]"
            raise _wrong_shape("reference_points", reference_points, form)
        if mask is not None:
            if mask.dtype is not torch.bool:
                raise TypeError(f"`input_padding_mask` is {mask.dtype}, expected torch.bool")
            if mask.shape != (batch, pixels.shape[1]):
                raise _wrong_shape("input_padding_mask", mask, f"[{batch}, {pixels.shape[1]}]")

    if TYPE_CHECKING:
        # For type checkers: `nn.Module.__call__` returns Any.
        def __call__(
            self,
            query: Tensor,
            reference_points: Tensor,
            input_flatten: Tensor,
            input_spatial_shapes: Shapes,
            input_level_start_index: Starts | None = None,
            input_padding_mask: Tensor | None = None,
        ) -> Tensor:
            """As `forward`."""

    def extra_repr(self) -> str:
        """The arguments, for `print(model)`."""
        text = f"d_model={self.d_model}, n_levels={self.n_levels}, n_heads={self.n_heads}, n_points={self.n_points}"
        return text + ", deterministic=True" if self.deterministic else text
