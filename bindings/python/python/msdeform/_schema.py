"""The operator's name and arguments in PyTorch, before anything computes it.

Two overloads each: `default` takes the levels as a list of integers, four for each level (height, width,
start, points); `tensor_levels` takes them as tensors and reads these when it runs, for graphs in which
nobody knows the numbers.

Defined by `torch.library.Library` and not by the decorator `custom_op`, which took 17 us a call in a trial against 5.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("msdeform", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
# Reading a tensor on the GPU waits for it, which a captured graph cannot. Newer versions of the compiler
# split the graph there when told.
_CUDAGRAPH_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
_READING_TAGS = _TAGS if _CUDAGRAPH_UNSAFE is None else (*_TAGS, _CUDAGRAPH_UNSAFE)

_TENSORS = "Tensor value, Tensor sampling_locations, Tensor attention_weights"
_NUMBERS = "SymInt[] levels"
_READ = "Tensor spatial_shapes, Tensor? level_start_index, SymInt[]? points"
LIBRARY.define(f"ms_deform_attn({_TENSORS}, {_NUMBERS}, bool deterministic=False) -> Tensor", tags=_TAGS)
LIBRARY.define(
    f"ms_deform_attn.tensor_levels({_TENSORS}, {_READ}, bool deterministic=False) -> Tensor",
    tags=_READING_TAGS,
)
_GRADIENTS = "bool[3] wanted, bool deterministic=False) -> (Tensor, Tensor, Tensor)"
LIBRARY.define(f"ms_deform_attn_backward(Tensor grad_output, {_TENSORS}, {_NUMBERS}, {_GRADIENTS}", tags=_TAGS)
LIBRARY.define(
    f"ms_deform_attn_backward.tensor_levels(Tensor grad_output, {_TENSORS}, {_READ}, {_GRADIENTS}",
    tags=_READING_TAGS,
)

FORWARD = torch.ops.msdeform.ms_deform_attn
BACKWARD = torch.ops.msdeform.ms_deform_attn_backward

# The same with samples that follow from offsets and logits; the levels as a list.
_SOURCE = "Tensor value, Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits"
_RULE = "SymInt[] levels, float offset_scale, bool anchors, bool softmax, bool nearest"
LIBRARY.define(f"ms_deform_attn_from_offsets({_SOURCE}, {_RULE}, bool deterministic=False) -> Tensor", tags=_TAGS)
LIBRARY.define(
    f"ms_deform_attn_from_offsets_backward(Tensor grad_output, {_SOURCE}, {_RULE}, bool[4] wanted, "
    "bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)

FROM_OFFSETS = torch.ops.msdeform.ms_deform_attn_from_offsets
FROM_OFFSETS_BACKWARD = torch.ops.msdeform.ms_deform_attn_from_offsets_backward
