"""Train a small Deformable-DETR encoder on synthetic images and watch the loss fall. CPU, less than a minute.

Each image shows a few coloured blobs; every pixel of every level is asked where the nearest one is.

    pip install target/wheels/*.whl torch  # built by `cargo xtask wheel`
    python train_encoder.py [steps]
"""

import sys
import time

import msdeform
import torch
from torch import Tensor, nn

SHAPES = [(24, 24), (12, 12), (6, 6)]
CHANNELS = 48


# %% The model: feature maps by strided convolutions, then encoder layers around `msdeform.MSDeformAttn`.
class EncoderLayer(nn.Module):
    """Attention and a small network, each with a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = msdeform.MSDeformAttn(CHANNELS, n_levels=len(SHAPES), n_heads=4, n_points=[4, 4, 2])
        self.norm_attention = nn.LayerNorm(CHANNELS)
        self.network = nn.Sequential(nn.Linear(CHANNELS, 96), nn.ReLU(), nn.Linear(96, CHANNELS))
        self.norm_network = nn.LayerNorm(CHANNELS)

    def forward(self, pixels: Tensor, position: Tensor, reference: Tensor) -> Tensor:
        """Lets every pixel look around."""
        attended = self.attention(pixels + position, reference, pixels, SHAPES)
        pixels = self.norm_attention(pixels + attended)
        return self.norm_network(pixels + self.network(pixels))


class Encoder(nn.Module):
    """From images to one (x, y) for every pixel of every level."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.down = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1) for _ in SHAPES[1:])
        self.position = nn.Linear(2, CHANNELS)
        self.level = nn.Parameter(torch.randn(len(SHAPES), CHANNELS) * 0.1)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.head = nn.Linear(CHANNELS, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Offsets from each pixel's own place."""
        maps = [self.stem(images)]
        for down in self.down:
            maps.append(down(maps[-1].relu()))
        pixels = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], dim=1)
        centres = pixel_centres().expand(len(images), -1, -1)
        sizes = [height * width for height, width in SHAPES]
        level = torch.cat([row.expand(count, -1) for row, count in zip(self.level, sizes, strict=True)])
        position = self.position(centres) + level
        reference = centres[:, :, None].expand(-1, -1, len(SHAPES), -1)
        for layer in self.layers:
            pixels = layer(pixels, position, reference)
        return self.head(pixels)


def pixel_centres() -> Tensor:
    """(x, y) of every pixel of every level in [0, 1]."""
    grids = []
    for height, width in SHAPES:
        y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        grids.append(torch.stack([x / width, y / height], dim=-1).flatten(0, 1))
    return torch.cat(grids)


# %% The data: blobs at random places.
def make_batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and, for every pixel, the way to the nearest blob."""
    places = torch.rand(size, 3, 2, generator=generator)
    grid = (torch.arange(96) + 0.5) / 96
    distance = (grid[None, None, :, None] - places[:, :, None, None, 1]).square() + (
        grid[None, None, None, :] - places[:, :, None, None, 0]
    ).square()
    images = (-distance * 400).exp()
    ways = places[:, None] - pixel_centres()[None, :, None]
    nearest = ways.norm(dim=-1).argmin(dim=-1)
    return images, ways.gather(2, nearest[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)


# %% Training.
def train(steps: int) -> tuple[float, float]:
    """The loss in the first and in the last tenth."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    start = time.perf_counter()
    for step in range(steps):
        images, target = make_batch(4, generator)
        loss = (model(images) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(steps // 10, 1) == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss.item():.4f}  {time.perf_counter() - start:5.1f} s")
    tenth = max(steps // 10, 1)
    return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth


if __name__ == "__main__":
    first, last = train(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    print(f"loss {first:.4f} -> {last:.4f}")
    assert last < first
