"""Existing models with and without the patch: the same outputs and gradients."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import msdeform
import pytest
import torch
from oracle import assert_close, make_case, reference
from torch import Tensor

FRAMEWORK_NAME = "a_framework_of_these_tests"


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    msdeform.unpatch()
    for name in [name for name in sys.modules if name.startswith(FRAMEWORK_NAME)]:
        del sys.modules[name]


def resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


def deformable_detr() -> Any:
    from transformers import DeformableDetrConfig, DeformableDetrModel

    return DeformableDetrModel(
        DeformableDetrConfig(
            use_timm_backbone=False,
            backbone=None,
            backbone_config=resnet(),
            use_pretrained_backbone=False,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_queries=20,
            num_feature_levels=4,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
        )
    )


def rt_detr(version: str = "RTDetr") -> Any:
    import transformers

    config = getattr(transformers, f"{version}Config")(
        backbone_config=transformers.RTDetrResNetConfig(
            embedding_size=8,
            hidden_sizes=[16, 24, 32, 48],
            depths=[1, 1, 1, 1],
            out_features=["stage2", "stage3", "stage4"],
        ),
        backbone=None,
        use_pretrained_backbone=False,
        encoder_in_channels=[24, 32, 48],
        encoder_hidden_dim=32,
        feat_strides=[8, 16, 32],
        encoder_ffn_dim=48,
        encoder_attention_heads=4,
        encode_proj_layers=[2],
        d_model=32,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=48,
        decoder_layers=2,
        decoder_attention_heads=4,
        num_queries=20,
        num_labels=7,
        num_denoising=0,
    )
    return getattr(transformers, f"{version}Model")(config)


def small_swin(*stages: str) -> Any:
    """Configures a backbone that hands out these stages."""
    from transformers import SwinConfig

    return SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        drop_path_rate=0.0,
        out_features=list(stages),
    )


def mask2former() -> Any:
    from transformers import Mask2FormerConfig, Mask2FormerModel

    return Mask2FormerModel(
        Mask2FormerConfig(
            backbone_config=small_swin("stage1", "stage2", "stage3", "stage4"),
            backbone=None,
            use_pretrained_backbone=False,
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=48,
            encoder_layers=2,
            decoder_layers=2,
            num_attention_heads=4,
            dim_feedforward=48,
            num_queries=10,
            dropout=0.0,
        )
    )


class GroundingDino(torch.nn.Module):
    """The model and a text to look for."""

    def __init__(self) -> None:
        from transformers import BertConfig, GroundingDinoConfig, GroundingDinoModel

        super().__init__()
        self.model = GroundingDinoModel(
            GroundingDinoConfig(
                backbone_config=small_swin("stage2", "stage3", "stage4"),
                backbone=None,
                use_pretrained_backbone=False,
                text_config=BertConfig(
                    vocab_size=2000,
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=24,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                ),
                d_model=32,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=48,
                decoder_ffn_dim=48,
                num_queries=20,
                dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                fusion_droppath=0.0,
            )
        )

    def forward(self, pixel_values: Tensor) -> Any:
        words = torch.tensor([[101, 7, 8, 1012, 9, 1012, 102]] * len(pixel_values), device=pixel_values.device)
        return self.model(pixel_values=pixel_values, input_ids=words)


MODELS = {
    "Deformable-DETR": (deformable_detr, "last_hidden_state"),
    "RT-DETR": (rt_detr, "last_hidden_state"),
    "RT-DETRv2": (lambda: rt_detr("RTDetrV2"), "last_hidden_state"),
    "Mask2Former": (mask2former, "transformer_decoder_last_hidden_state"),
}


# On the processor only: the other half of them is text.
TEXT_MODELS = {"Grounding DINO": (GroundingDino, "last_hidden_state")}


def run(model: Any, name: str, pixels: Tensor, loss_scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    output = getattr(model(pixel_values=pixels), (MODELS | TEXT_MODELS)[name][1])
    # Not the square: outputs are normalised, their sum of squares hardly depends on anything.
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
    (output * (direction * loss_scale)).sum().backward()
    gradients = {
        key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None
    }
    return output.detach(), gradients


def compare(model: Any, name: str, pixels: Tensor, bound: float) -> None:
    msdeform.unpatch()
    expected, exact = run(model, name, pixels)
    replaced = msdeform.patch("transformers")
    assert replaced and msdeform.patched() == replaced
    with CountCalls() as count:
        found, gradients = run(model, name, pixels)
    assert count.forward > 0 and count.backward > 0, "the model does not use the patch"
    assert_close(found, expected, bound, name)
    assert gradients.keys() == exact.keys()
    whole = torch.cat([gradients[key].flatten() for key in exact])
    assert_close(whole, torch.cat([exact[key].flatten() for key in exact]), 10 * bound, "all gradients")


class CountCalls(torch.utils._python_dispatch.TorchDispatchMode):
    """How often the operator runs."""

    forward = 0
    backward = 0

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.forward += "ms_deform_attn." in str(function)
        self.backward += "ms_deform_attn_backward" in str(function)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("name", MODELS | TEXT_MODELS)
def test_transformers_models_give_the_same_with_and_without(name: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = (MODELS | TEXT_MODELS)[name][0]().eval()
    with torch.no_grad():
        # Fresh models have all-zero offsets and equal weights in many places; that would test little.
        for key, parameter in model.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    compare(model, name, torch.randn(2, 3, 96, 128), 1e-4)


def test_every_place_in_transformers_computes_the_same_as_before() -> None:
    """All models that have the operator, by the function or the layer that is replaced, tiny and without the rest."""
    transformers = pytest.importorskip("transformers")
    from msdeform import patching

    plain, listed = make_case(), make_case(points=[2, 1, 3])
    starts = torch.tensor([0, 108, 138])
    places = {}
    for name in msdeform.patch("transformers"):
        done = next(done for done in patching._replacements if done.name == name)
        case, tail = (listed, (listed.points, "default")) if name.endswith("_v2") else (plain, ())
        results = []
        for function in (done.original, getattr(done.owner, done.attribute)):
            leaves = case.requires_grad()
            if name.endswith(".forward"):
                arguments = (
                    None,
                    leaves.value,
                    torch.tensor(case.shapes),
                    case.shapes,
                    starts,
                    *leaves.tensors[1:],
                    64,
                )
            else:
                # DETA alone insists on a tensor.
                shapes = torch.tensor(case.shapes) if "modeling_deta." in name else case.shapes
                arguments = (leaves.value, shapes, *leaves.tensors[1:], *tail)
            output = function(*arguments)
            direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
            results.append((output, *torch.autograd.grad(output, leaves.tensors, direction)))
        for before, after in zip(*results, strict=True):
            assert_close(after, before, 1e-5, name)
        places[name.split(".")[-3 if name.endswith(".forward") else -2]] = name
    known = ["deformable_detr", "grounding_dino", "mask2former", "omdet_turbo", "oneformer", "rt_detr", "rt_detr_v2"]
    assert {f"modeling_{model}" for model in known} <= places.keys(), (transformers.__version__, sorted(places))


def test_unpatching_puts_everything_back() -> None:
    pytest.importorskip("transformers")
    from transformers.models.mask2former import modeling_mask2former
    from transformers.models.rt_detr import modeling_rt_detr

    layer = modeling_rt_detr.MultiScaleDeformableAttention
    before = (layer.forward, modeling_mask2former.multi_scale_deformable_attention)
    replaced = msdeform.patch("transformers")
    assert (layer.forward, modeling_mask2former.multi_scale_deformable_attention) != before
    assert "transformers.models.rt_detr.modeling_rt_detr.MultiScaleDeformableAttention.forward" in replaced
    assert msdeform.patch("transformers") == [], "a second patch replaces nothing"
    assert msdeform.unpatch() == replaced and msdeform.patched() == []
    assert (layer.forward, modeling_mask2former.multi_scale_deformable_attention) == before


def framework(parameters: str) -> types.ModuleType:
    """A package as everybody copied it: an autograd function around a compiled extension, and a slow path."""
    module = types.ModuleType(f"{FRAMEWORK_NAME}.functions")
    source = f"""
import torch

class MSDeformAttnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {parameters}):
        raise RuntimeError("the extension was not built")

def ms_deform_attn_core_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
    raise RuntimeError("slow")
"""
    exec(source, vars(module))
    vars(module)["MSDeformAttnFunction"].__module__ = module.__name__
    vars(module)["ms_deform_attn_core_pytorch"].__module__ = module.__name__
    sys.modules[module.__name__] = module
    return module


KNOWN = "value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step"


def test_functions_of_the_detectron2_family_are_found_wherever_they_are() -> None:
    module = framework(KNOWN)
    importer = types.ModuleType(f"{FRAMEWORK_NAME}.importer")
    importer.ms_deform_attn_core_pytorch = module.ms_deform_attn_core_pytorch  # type: ignore[attr-defined]
    sys.modules[importer.__name__] = importer
    replaced = msdeform.patch("detectron2")
    assert f"{FRAMEWORK_NAME}.functions.MSDeformAttnFunction.apply" in replaced
    case = make_case().requires_grad()
    shapes = torch.tensor(case.shapes)
    output = module.MSDeformAttnFunction.apply(
        case.value, shapes, torch.tensor([0, 108, 138]), case.locations, case.weights, 64
    )
    assert_close(output, reference(case), 1e-5)
    output.sum().backward()
    assert case.value.grad is not None
    for place in (module, importer):
        slow = place.ms_deform_attn_core_pytorch(case.value, case.shapes, case.locations, case.weights)
        assert_close(slow, reference(case), 1e-5)
    msdeform.unpatch()
    with pytest.raises(RuntimeError, match="not built"):
        module.MSDeformAttnFunction.apply(*([torch.zeros(1)] * 6))


def test_the_extension_that_nobody_can_build_gets_a_stand_in() -> None:
    assert "MultiScaleDeformableAttention" not in sys.modules
    msdeform.patch("detectron2")
    import MultiScaleDeformableAttention as extension  # type: ignore[import-not-found]

    case = make_case()
    arguments = (
        case.value,
        torch.tensor(case.shapes),
        torch.tensor([0, 108, 138]),
        case.locations,
        case.weights,
    )
    output = extension.ms_deform_attn_forward(*arguments, 64)
    assert_close(output, reference(case), 1e-5)
    gradients = extension.ms_deform_attn_backward(*arguments, torch.ones_like(output), 64)
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in case.tensors]
    msdeform.unpatch()
    assert "MultiScaleDeformableAttention" not in sys.modules


def test_unknown_versions_are_left_alone_and_say_why() -> None:
    module = framework("value, shapes, something_new")
    with pytest.warns(UserWarning, match="leaves .*MSDeformAttnFunction.apply alone: it takes .*something_new"):
        replaced = msdeform.patch("detectron2")
    assert not any("MSDeformAttnFunction" in name for name in replaced)
    with pytest.raises(RuntimeError, match="not built"):
        module.MSDeformAttnFunction.apply(torch.zeros(1), 1, 2)


def test_what_is_not_installed_is_a_warning_and_a_typo_an_error() -> None:
    with pytest.warns(UserWarning, match='nothing to patch for "mmcv"'):
        assert msdeform.patch("mmcv") == []
    with pytest.raises(ValueError, match='unknown framework "mmdet"; known: "transformers"'):
        msdeform.patch("mmdet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        msdeform.patch()  # Everything that is installed, quietly.
