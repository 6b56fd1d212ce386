"""The models that are measured before and after the patch: one of each package, or more.

To add a model is to add an entry to `MODELS`. Weights are random and nothing is downloaded.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Before the packages are imported. They would look for a network, write settings into the home folder and install
# what they miss.
os.environ.setdefault("YOLO_CONFIG_DIR", os.path.join(tempfile.gettempdir(), "msdeform-benches"))
os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"})
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# LibreYOLO would fetch a compiled kernel where `kernels` is installed. Its own for inference, in Triton, is part of the
# package and stays: that is what people have before the patch.
os.environ.setdefault("LIBREYOLO_HUB_KERNELS", "0")
# PyTorch's profiler would print a line when it starts and ends.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass(frozen=True)
class Input:
    """Images that a model is given."""

    images: int
    height: int
    width: int


@dataclass(frozen=True)
class Model:
    """A model, where it comes from, and the inputs it is given."""

    # As `msdeform.patch()` and the package index call it.
    package: str
    # Some models are made for one size of images.
    build: Callable[[Input], Any]
    # The tensor that is compared, and that gradients start from.
    output: Callable[[Any], Tensor]
    cuda: Input
    cpu: Input
    # Modes that it is not measured in, and why.
    left_out: Mapping[str, str] = field(default_factory=dict)

    def is_installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.package) is not None


def _last_hidden_state(output: Any) -> Tensor:
    found: Tensor = output.last_hidden_state
    return found


def _transformers(name: str, **configuration: Any) -> Callable[[Input], Any]:
    """A model of transformers by the head of its name."""

    def build(_: Input) -> Any:
        import transformers

        return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**configuration))

    return build


def _deformable_detr(images: Input) -> Any:
    from transformers import ResNetConfig

    backbone = ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    settings = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
    return _transformers("DeformableDetr", backbone_config=backbone, **settings)(images)


class _WithWords(torch.nn.Module):
    """Grounding DINO, and a text to look for. The text's half of it is small: it is not what is measured.

    Its decoder gets the best 900 of 20,000 pixels in their order. Scores of random weights lie so close together that
    rounding alone picks others, and what is computed for one query is compared with what is computed for another. So
    every pass keeps the order that the first one found.
    """

    # More than scores are apart.
    _STEP = 1e3

    def __init__(self) -> None:
        from transformers import BertConfig, GroundingDinoConfig, GroundingDinoModel

        super().__init__()
        text = BertConfig(vocab_size=2000, num_hidden_layers=2)
        self.model = GroundingDinoModel(GroundingDinoConfig(text_config=text))
        self.model.encoder_output_class_embed.register_forward_hook(self._keep_order)
        # Two words with a stop behind each, between a start and an end.
        self.register_buffer("words", torch.tensor([[101, 7, 8, 1012, 9, 1012, 102]]))
        self.register_buffer("lead", None)

    def forward(self, pixels: Tensor) -> Any:
        return self.model(pixel_values=pixels, input_ids=self.words.expand(len(pixels), -1))

    def _keep_order(self, _module: Any, _inputs: Any, scores: Tensor) -> Tensor:
        if self.lead is None:
            best = scores.amax(-1).topk(self.model.config.num_queries).indices
            leads = self._STEP * torch.arange(best.shape[1], 0, -1.0, device=best.device)
            lead = torch.zeros(scores.shape[:2], device=best.device).scatter_(1, best, leads.expand_as(best))
            self.lead = lead[..., None]
        # It is asked again for the pixels that were picked.
        return scores + self.lead if scores.shape[1] == self.lead.shape[1] else scores


def _ultralytics(name: str) -> Callable[[Input], Any]:
    def build(_: Input) -> Any:
        from ultralytics import RTDETR

        return RTDETR(name).model.requires_grad_()

    return build


def _rfdetr(name: str) -> Callable[[Input], Any]:
    def build(images: Input) -> Any:
        from rfdetr import config
        from rfdetr.models.lwdetr import build_model_from_config

        settings = getattr(config, f"RFDETR{name}Config")
        patch = settings.model_fields["patch_size"].default
        # Weights of a name that is never read: without one the backbone's would be downloaded.
        return build_model_from_config(
            settings(
                pretrain_weights="none.pth",
                resolution=images.height,
                positional_encoding_size=images.height // patch,
                device="cpu",
            )
        )

    return build


def _libreyolo_rt_detr(_: Input) -> Any:
    from libreyolo.models.rtdetr.nn import RTDETRModel

    # As its class for users builds "r50", which would download weights of the backbone.
    return RTDETRModel(backbone_depth=50, expansion=1.0, num_decoder_layers=6)


class _Uncompiled(types.ModuleType):
    """Stands in for the compiled half of mmcv: everything is there, and nothing works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _import_mmcv() -> None:
    """mmcv without its extension, because the package index has no compiled files of the extension.

    mmcv-lite is the rest of mmcv, but it loads no operators without an extension. On a GPU, mmcv's attention calls the
    extension, compiled or not. If the attention is told that there is no GPU, it uses `grid_sample` per level.
    """
    if importlib.util.find_spec("mmcv") is not None and importlib.util.find_spec("mmcv._ext") is None:
        extension = _Uncompiled("mmcv._ext")
        extension.__spec__ = importlib.machinery.ModuleSpec("mmcv._ext", None)
        sys.modules["mmcv._ext"] = extension
    importlib.import_module("mmcv.ops.multi_scale_deform_attn").IS_CUDA_AVAILABLE = False


class _OfMmdet(torch.nn.Module):
    """A detector of mmdet from its configuration, with the metadata that it needs for each image."""

    def __init__(self, configuration: str, images: Input) -> None:
        _import_mmcv()
        from mmdet.registry import MODELS as DETECTORS
        from mmdet.structures import DetDataSample
        from mmdet.utils import register_all_modules
        from mmengine.hub import get_config
        from mmengine.logging import MMLogger

        super().__init__()
        register_all_modules()
        MMLogger.get_current_instance().setLevel("WARNING")  # It has a line for every tensor that is initialised.
        settings = get_config(f"mmdet::{configuration}").model
        settings.backbone.init_cfg = None  # It would download weights.
        self.model = DETECTORS.build(settings)
        # Uninitialised otherwise, some of them.
        self.model.init_weights()
        size = (images.height, images.width)
        sample = DetDataSample(metainfo={"img_shape": size, "batch_input_shape": size})
        self.samples = [sample] * images.images

    def forward(self, pixels: Tensor) -> Any:
        return self.model(pixels, self.samples, mode="tensor")


def _boxes_and_scores(output: Any) -> Tensor:
    return torch.cat([output["pred_boxes"], output["pred_logits"]], dim=-1)


MODELS = {
    "Deformable-DETR": Model(
        "transformers", _deformable_detr, _last_hidden_state, Input(2, 800, 1066), Input(1, 256, 320)
    ),
    "RT-DETR": Model(
        "transformers",
        _transformers("RTDetr", num_denoising=0),
        _last_hidden_state,
        Input(4, 640, 640),
        Input(1, 320, 320),
    ),
    # Not D-FINE: with random weights it magnifies rounding until nothing is left. In float32 the unpatched model's
    # output is 57 % off that in float64, and the gradients of its encoder 79 %; patched and unpatched outputs agree to
    # 1e-7.
    "RT-DETRv2": Model(
        "transformers",
        _transformers("RTDetrV2", num_denoising=0),
        _last_hidden_state,
        Input(4, 640, 640),
        Input(1, 320, 320),
    ),
    "Mask2Former": Model(
        "transformers",
        _transformers("Mask2Former"),
        lambda output: output.transformer_decoder_last_hidden_state,
        Input(1, 1024, 1024),
        Input(1, 256, 256),
    ),
    "Grounding DINO": Model(
        "transformers", lambda _: _WithWords(), _last_hidden_state, Input(1, 800, 1066), Input(1, 256, 320)
    ),
    "RT-DETR-L": Model(
        "ultralytics",
        _ultralytics("rtdetr-l.yaml"),
        # Boxes and scores of the last layer: the first half of the output has the best of them, in their order.
        lambda output: torch.cat([output[1][0][-1], output[1][1][-1]], dim=-1),
        Input(4, 640, 640),
        Input(1, 320, 320),
    ),
    "RF-DETR-M": Model(
        "rfdetr",
        _rfdetr("Medium"),
        _boxes_and_scores,
        Input(4, 576, 576),
        Input(1, 320, 320),
    ),
    "RT-DETR-R50": Model("libreyolo", _libreyolo_rt_detr, _boxes_and_scores, Input(4, 640, 640), Input(1, 320, 320)),
    # Of one stage: two would pick the best pixels after the encoder, and rounding picks others, as in Grounding DINO.
    "Deformable-DETR-R50": Model(
        "mmdet",
        lambda images: _OfMmdet("deformable_detr/deformable-detr_r50_16xb2-50e_coco.py", images),
        # Of the last layer.
        lambda output: torch.cat([output[1][-1], output[0][-1]], dim=-1),
        Input(2, 800, 1066),
        Input(1, 256, 320),
        left_out={"graph": "mmdet reads the sizes of levels from the GPU in every pass, to place reference points"},
    ),
}
