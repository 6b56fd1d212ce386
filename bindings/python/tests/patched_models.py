"""Small models of transformers with random weights, and what they give with and without the patch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msdeform
import torch
from oracle import assert_close
from torch import Tensor


def resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


# Of models with an encoder and a decoder.
SMALL = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 20,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}


def deformable_detr() -> Any:
    from transformers import DeformableDetrConfig, DeformableDetrModel

    return DeformableDetrModel(
        DeformableDetrConfig(
            use_timm_backbone=False,
            backbone=None,
            backbone_config=resnet(),
            use_pretrained_backbone=False,
            num_feature_levels=4,
            **SMALL,
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


def d_fine(version: str = "DFine") -> Any:
    """D-FINE or DEIMv2: their values come straight from BatchNorm, without a projection of the layer's own."""
    import transformers

    backbone = transformers.HGNetV2Config(
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16, 24, 32],
        stage_mid_channels=[4, 4, 8, 8],
        stage_out_channels=[16, 24, 32, 48],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[1, 1, 1, 1],
        hidden_sizes=[16, 24, 32, 48],
        embedding_size=8,
        depths=[1, 1, 1, 1],
        out_indices=[2, 3, 4],
    )
    config = getattr(transformers, f"{version}Config")(
        backbone_config=backbone,
        freeze_backbone_batch_norms=False,
        encoder_in_channels=[24, 32, 48],
        encoder_hidden_dim=32,
        encoder_ffn_dim=48,
        encoder_attention_heads=4,
        d_model=32,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=48,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_n_points=[2, 3, 2],
        lqe_hidden_dim=8,
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
                fusion_droppath=0.0,
                **SMALL,
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


# On the CPU only, because half of each model is text.
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
    """How often the operator runs, plain or from offsets; and how often the latter alone."""

    forward = 0
    backward = 0
    from_offsets = 0

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = str(function)
        self.forward += "ms_deform_attn." in name or "ms_deform_attn_from_offsets." in name
        self.backward += "ms_deform_attn_backward." in name or "ms_deform_attn_from_offsets_backward." in name
        self.from_offsets += "ms_deform_attn_from_offsets." in name
        return function(*arguments, **(keywords or {}))


def train(build: Callable[[], Any], loss: Callable[[Any], Tensor], steps: int = 20) -> dict[str, Tensor]:
    """What some steps of training in PyTorch's deterministic mode make of a model.

    Warnings are errors if they are about that mode or come from this package.
    """
    torch.manual_seed(3)
    model = build()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*determinis")
            warnings.filterwarnings("error", module="msdeform")
            for step in range(steps):
                optimiser.zero_grad()
                with CountCalls() if step == 0 else nullcontext() as count:
                    loss(model).backward()
                optimiser.step()
                assert count is None or (count.forward > 0 and count.backward > 0), "the model does not use the patch"
    finally:
        torch.use_deterministic_algorithms(False)
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}
