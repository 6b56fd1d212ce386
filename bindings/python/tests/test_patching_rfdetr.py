"""rfdetr under the patch: values `[N, M, D, S]`, shapes in addition to the tensor of shapes, exports.

Current versions and old ones alike: put an old one before the environment's own to test it, with a transformers of its
time: `uv pip install --target old rfdetr==1.3.0; PYTHONPATH=old pytest tests/test_patching_rfdetr.py`.
"""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import msdeform
import pytest
import torch
from oracle import assert_close
from patched_models import CountCalls
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rfdetr = pytest.importorskip("rfdetr")

NAME = "rfdetr.models.ops.functions.ms_deform_attn_func.ms_deform_attn_core_pytorch"
SHAPES = [(8, 10), (4, 5)]


def layer() -> Any:
    from rfdetr.models.ops.modules import MSDeformAttn

    torch.manual_seed(2)
    made = MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=3)
    torch.nn.init.normal_(made.sampling_offsets.weight, std=0.1)
    torch.nn.init.normal_(made.attention_weights.weight, std=0.3)
    return made


def arguments(levels: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    query, pixels = torch.randn(2, 7, 32, generator=generator), torch.randn(2, 100, 32, generator=generator)
    boxes = torch.rand(2, 7, levels, 4, generator=generator)
    return query, boxes, pixels, torch.tensor(SHAPES), torch.tensor([0, 80])


def run(module: Any, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    module.zero_grad()
    output = module(*given, **named)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return output.detach(), torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("form", ["tensor of shapes", "shapes next to it", "export"])
def test_layers_give_the_same_with_and_without(form: str) -> None:
    module = layer()
    named = {} if form == "tensor of shapes" else {"input_spatial_shapes_hw": SHAPES}
    if named and "input_spatial_shapes_hw" not in type(module).forward.__code__.co_varnames:
        pytest.skip(f"rfdetr {getattr(rfdetr, '__version__', '')} takes no shapes next to the tensor")
    if form == "export":
        module.export()  # Locations have an axis less.
    before = run(module, *arguments(2), **named)
    assert NAME in msdeform.patch("rfdetr")
    with CountCalls() as count:
        after = run(module, *arguments(2), **named)
    assert count.forward == count.backward == 1
    for found, expected in zip(after, before, strict=True):
        assert_close(found, expected, 1e-5)


def build_nano() -> Any:
    from rfdetr.config import RFDETRNanoConfig

    # Weights of a name that is never read: without one the backbone's would be downloaded.
    config = RFDETRNanoConfig(
        pretrain_weights="none.pth", resolution=64, positional_encoding_size=4, device="cpu", num_queries=20
    )
    try:
        from rfdetr.models.lwdetr import build_model_from_config
    except ImportError:  # Up to 1.3.
        from rfdetr.main import populate_args
        from rfdetr.models import build_model

        return build_model(populate_args(**config.model_dump()))
    return build_model_from_config(config)


def test_a_whole_model_gives_the_same_with_and_without() -> None:
    torch.manual_seed(4)
    model = build_nano()
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    images = torch.rand(2, 3, 64, 64)
    before = model(images)
    msdeform.patch()
    with CountCalls() as count:
        after = model(images)
    assert count.forward > 0
    for key in ("pred_logits", "pred_boxes"):
        assert_close(after[key], before[key], 1e-4, key)
    (after["pred_logits"].sum() + after["pred_boxes"].sum()).backward()
