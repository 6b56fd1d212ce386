"""Swap the operator into a transformers model at run time, and compare before and after.

pip install target/wheels/*.whl torch transformers  # built by `cargo xtask wheel`
python swap_into_transformers.py
"""

import time

import msdeform
import torch
from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig

# %% A small model with random weights, so that nothing has to be downloaded. Yours comes from `from_pretrained`.
torch.manual_seed(0)
config = DeformableDetrConfig(
    use_timm_backbone=False,
    backbone=None,
    use_pretrained_backbone=False,
    backbone_config=ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 48, 64, 96],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    ),
    d_model=128,
    encoder_layers=3,
    decoder_layers=3,
    encoder_ffn_dim=256,
    decoder_ffn_dim=256,
    num_queries=100,
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = DeformableDetrForObjectDetection(config).eval().to(device)
image = torch.randn(1, 3, 320, 416, device=device)


def detect() -> tuple[torch.Tensor, float]:
    """Class scores of all queries, and the milliseconds they took."""
    with torch.no_grad():
        model(pixel_values=image)  # Warm up.
        start = time.perf_counter()
        logits = model(pixel_values=image).logits
        if device == "cuda":
            torch.cuda.synchronize()
    return logits, (time.perf_counter() - start) * 1e3


# %% As it is.
before, before_ms = detect()

# %% With the operator. The model object stays the same.
replaced = msdeform.patch("transformers")
after, after_ms = detect()
print(f"{len(replaced)} places replaced, for example {replaced[0]}")
print(f"{before_ms:.0f} ms before, {after_ms:.0f} ms after, on {device}")
difference = float((after - before).norm() / before.norm())
print(f"relative difference of the scores: {difference:.1e}")
assert difference < 1e-4

# %% And back.
msdeform.unpatch()
assert msdeform.patched() == []
