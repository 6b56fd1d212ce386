"""What a user of the package writes, for mypy --strict and pyright: see test_typing.py. Never run."""

from typing import Any

import msdeform
import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

value, locations, weights = torch.randn(1, 20, 2, 4), torch.rand(1, 5, 2, 1, 3, 2), torch.rand(1, 5, 2, 1, 3)
shapes = [(4, 5)]

# Tensors in, a tensor out; every form of the levels.
assert_type(msdeform.ms_deform_attn(value, shapes, None, locations, weights), torch.Tensor)
assert_type(
    msdeform.ms_deform_attn(value, torch.tensor(shapes), torch.tensor([0]), locations, weights, 64), torch.Tensor
)
assert_type(msdeform.ms_deform_attn(value, list(torch.tensor(shapes)), [0], locations, weights, points=3), torch.Tensor)
assert_type(msdeform.ms_deform_attn(value, [value.shape[2:]], None, locations, weights, points=[3]), torch.Tensor)
assert_type(
    msdeform.ms_deform_attn(value, shapes, sampling_locations=locations, attention_weights=weights, deterministic=True),
    torch.Tensor,
)

# Arrays in, an array of the same format out.
array = np.zeros((1, 20, 2, 4), np.float32)
places, shares = np.zeros((1, 5, 2, 1, 3, 2), np.float32), np.zeros((1, 5, 2, 1, 3), np.float32)
assert_type(msdeform.ms_deform_attn(array, shapes, None, places, shares, threads=2), NDArray[np.float32])
assert_type(
    msdeform.ms_deform_attn(array, np.array(shapes), sampling_locations=places, attention_weights=shares),
    NDArray[np.float32],
)

assert_type(msdeform.ms_deform_attn(value, shapes, None, locations, weights, deterministic=None), torch.Tensor)

layer = msdeform.MSDeformAttn(d_model=256, n_levels=1, n_points=[4])
assert_type(layer(torch.randn(1, 5, 256), torch.rand(1, 5, 1, 2), torch.randn(1, 20, 256), shapes), torch.Tensor)

assert_type(msdeform.__version__, str)
assert_type(msdeform.variants(), list[dict[str, Any]])
assert_type(msdeform.reference.ms_deform_attn(value, shapes, None, locations, weights), torch.Tensor)
assert_type(msdeform.reference.ms_deform_attn(array, shapes, None, places, shares), NDArray[np.float32])
assert_type(
    msdeform.reference.ms_deform_attn_from_offsets(value, shapes, torch.rand(1, 5, 1, 2), locations, weights),
    torch.Tensor,
)

# What documentation names is there to be named.
assert_type(msdeform.Shape(8, 32, [4, 4]).heads, int)
try:
    msdeform.warm_up([msdeform.Shape(heads=8, channels=32, points=[4])])
except msdeform.Unavailable as error:
    assert_type(error, msdeform.Unavailable)

# What must be refused: an unused comment is an error of its own.
msdeform.ms_deform_attn(value, shapes, None, locations)  # type: ignore[call-overload]  # pyright: ignore
msdeform.ms_deform_attn(value, shapes)  # type: ignore[call-overload]  # pyright: ignore
msdeform.ms_deform_attn(value, shapes, None, locations, weights, threads=2)  # type: ignore[call-overload]  # pyright: ignore
msdeform.ms_deform_attn(value, "shapes", None, locations, weights)  # type: ignore[arg-type]  # pyright: ignore
layer(torch.randn(1, 5, 256), torch.rand(1, 5, 1, 2))  # type: ignore[call-arg]  # pyright: ignore
misspelt = msdeform.ms_deform_atn  # type: ignore[attr-defined]  # pyright: ignore
msdeform.pach("transformers")  # type: ignore[attr-defined]  # pyright: ignore
misspelt = msdeform.reference.ms_deform_atn  # type: ignore[attr-defined]  # pyright: ignore
