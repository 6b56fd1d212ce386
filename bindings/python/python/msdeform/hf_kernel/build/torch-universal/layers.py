"""Layers that take the place of a model's own."""

from torch import Tensor, nn

import msdeform

__all__ = ["MultiScaleDeformableAttention"]


class MultiScaleDeformableAttention(nn.Module):
    """The layer of this name in the models of transformers."""

    # What `kernels` reads.
    has_backward = True
    can_torch_compile = True

    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: list[tuple[int, int]],
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int,
    ) -> Tensor:
        """Attends; the levels follow each other, and the list of their shapes costs no synchronisation."""
        return msdeform.ms_deform_attn(value, value_spatial_shapes_list, None, sampling_locations, attention_weights)
