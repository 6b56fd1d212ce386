"""The local kernel for the `kernels` package: transformers takes our layer where it would download one."""

from __future__ import annotations

import os

import pytest
import torch
from msdeform import hf_kernel
from oracle import assert_close, make_case, reference
from patched_models import CountCalls, deformable_detr

os.environ.setdefault("HF_HUB_OFFLINE", "1")
kernels = pytest.importorskip("kernels")
transformers = pytest.importorskip("transformers")

NAME = "MultiScaleDeformableAttention"


def test_the_layer_computes_the_operator() -> None:
    layer = kernels.get_local_kernel(hf_kernel.PATH).layers.MultiScaleDeformableAttention
    case = make_case()
    shapes = torch.tensor(case.shapes)
    output = layer()(case.value, shapes, case.shapes, torch.tensor([0, 108, 138]), case.locations, case.weights, 64)
    assert_close(output, reference(case), 1e-5)


def test_a_model_takes_it() -> None:
    repository = kernels.LocalLayerRepository(hf_kernel.PATH, layer_name=NAME)
    torch.manual_seed(1)
    model = deformable_detr().eval()
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad(), CountCalls() as count:
        before = model(pixel_values=pixels).last_hidden_state
        assert count.forward == 0
        with kernels.use_kernel_mapping({NAME: {"cpu": repository}}, inherit_mapping=False):
            kernels.kernelize(model, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE, device="cpu")
        after = model(pixel_values=pixels).last_hidden_state
    assert count.forward == 4, "two layers of the encoder, two of the decoder"
    assert_close(after, before, 1e-4)
    model.train()(pixel_values=pixels).last_hidden_state.sum().backward()


def test_the_configuration_of_transformers_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping that `model.set_use_kernels(True, config)` makes on a GPU. On a CPU that call uses no kernels."""
    from transformers.utils import kernel_config

    monkeypatch.setattr(kernel_config, "infer_device", lambda _: "cuda")
    config = transformers.KernelConfig({NAME: f"{hf_kernel.PATH}:{NAME}"}, use_local_kernel=True)
    model = deformable_detr().eval()
    config.sanitize_kernel_mapping(model)
    config.create_compatible_mapping(model)
    (repository,) = config.kernel_mapping[NAME]["cuda"].values()
    assert repository.load().forward.__code__.co_filename.startswith(str(hf_kernel.PATH))
