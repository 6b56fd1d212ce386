"""Times PyTorch's own path for multi-scale deformable attention on the CPU.

This is the formulation that Deformable-DETR and transformers fall back to where no CUDA kernel is
built: split the value by level, `grid_sample` every level, stack, weight and sum. One JSON line per
measurement: {"workload", "direction", "threads", "torch", "samples_us"}.

    python grid_sample_baseline.py --threads 2 --workload ddetr_enc ddetr_dec --json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F

LEVELS = [(100, 167), (50, 84), (25, 42), (13, 21)]
HEADS, CHANNELS, POINTS = 8, 32, 4
PIXELS = sum(height * width for height, width in LEVELS)

# name -> (queries, whether the queries are the pixels themselves)
WORKLOADS = {"ddetr_enc": (PIXELS, True), "ddetr_dec": (300, False)}


def deformable_attention(value: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """value [N, S, M, D], locations [N, Lq, M, L, P, 2], weights [N, Lq, M, L, P]."""
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    grids = 2 * locations - 1
    sampled = []
    for index, part in enumerate(value.split([h * w for h, w in LEVELS], dim=1)):
        height, width = LEVELS[index]
        image = part.flatten(2).transpose(1, 2).reshape(batch * heads, channels, height, width)
        grid = grids[:, :, :, index].transpose(1, 2).flatten(0, 1)
        sampled.append(F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    shares = weights.transpose(1, 2).reshape(batch * heads, 1, queries, len(LEVELS) * POINTS)
    output = (torch.stack(sampled, dim=-2).flatten(-2) * shares).sum(-1)
    return output.view(batch, heads * channels, queries).transpose(1, 2).contiguous()


def local_locations(queries: int, are_pixels: bool, generator: torch.Generator) -> torch.Tensor:
    """A reference point per query, a direction per head, pixel offsets that grow with the point."""
    if are_pixels:
        centres = []
        for height, width in LEVELS:
            y, x = torch.meshgrid(
                (torch.arange(height) + 0.5) / height,
                (torch.arange(width) + 0.5) / width,
                indexing="ij",
            )
            centres.append(torch.stack([x, y], dim=-1).reshape(-1, 2))
        reference = torch.cat(centres)
    else:
        reference = torch.rand(queries, 2, generator=generator)
    angles = torch.arange(HEADS) * (2 * math.pi / HEADS)
    directions = torch.stack([angles.cos(), angles.sin()], dim=-1)
    radii = 0.75 * (torch.arange(POINTS) + 1)
    offsets = directions[:, None, None, :] * radii[None, None, :, None]
    noise = torch.randn(1, queries, HEADS, len(LEVELS), POINTS, 2, generator=generator)
    sizes = torch.tensor([(width, height) for height, width in LEVELS], dtype=torch.float32)
    shift = (offsets + noise) / sizes[:, None, :]
    return reference[None, :, None, None, None, :] + shift


def measure(run, warmups: int, repeats: int) -> list[float]:
    for _ in range(warmups):
        run()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        run()
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return samples


def time_workload(name: str, warmups: int, repeats: int) -> dict[str, list[float]]:
    queries, are_pixels = WORKLOADS[name]
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(1, PIXELS, HEADS, CHANNELS, generator=generator)
    locations = local_locations(queries, are_pixels, generator)
    logits = torch.randn(1, queries, HEADS, len(LEVELS) * POINTS, generator=generator)
    weights = logits.softmax(-1).view(1, queries, HEADS, len(LEVELS), POINTS)
    upstream = torch.randn(1, queries, HEADS * CHANNELS, generator=generator)

    def forward() -> None:
        with torch.no_grad():
            deformable_attention(value, locations, weights)

    inputs = [tensor.clone().requires_grad_() for tensor in (value, locations, weights)]
    # One graph, walked again and again: the time of the backward pass alone.
    output = deformable_attention(*inputs)

    def backward() -> None:
        torch.autograd.grad(output, inputs, upstream, retain_graph=True)

    return {
        "forward": measure(forward, warmups, repeats),
        "backward": measure(backward, warmups, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--workload", nargs="+", choices=sorted(WORKLOADS), default=[*WORKLOADS])
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.json:
        print(f"torch {torch.__version__}, {arguments.threads} threads, f32")
    for workload in arguments.workload:
        times = time_workload(workload, arguments.warmups, arguments.repeats)
        for direction, samples in times.items():
            if arguments.json:
                row = {
                    "workload": workload,
                    "direction": direction,
                    "threads": arguments.threads,
                    "torch": torch.__version__,
                    "samples_us": samples,
                }
                print(json.dumps(row), flush=True)
            else:
                median = statistics.median(samples) / 1e3
                fastest = min(samples) / 1e3
                print(f"{workload:10} {direction:9} median {median:9.2f} ms   min {fastest:9.2f} ms")


if __name__ == "__main__":
    main()
