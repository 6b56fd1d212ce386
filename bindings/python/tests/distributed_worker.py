"""The processes of a distributed test; started by test_distributed.py as `what port world`.

They are forks of one process that has imported PyTorch: importing it, with DTensor, takes longer than the test.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import msdeform
import torch
import torch.distributed as dist
from oracle import assert_close, make_case, reference, reference_gradients
from torch.nn.parallel import DistributedDataParallel


def check_sharding(world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    msdeform.register_sharding()
    msdeform.register_sharding()  # Again: nothing happens.
    mesh = init_device_mesh("cpu", (world,))
    case = make_case(batch=world, heads=4, queries=4 * world)
    grad_output = torch.randn(world, 4 * world, 32, generator=torch.Generator().manual_seed(1))
    expected = reference_gradients(case, grad_output)
    # Placements of value, of locations and weights, and of the output they must give.
    rules = {
        "images": (Shard(0), Shard(0), Shard(0)),
        "queries": (Replicate(), Shard(1), Shard(1)),
        "heads": (Shard(2), Shard(2), Shard(2)),
        "nothing": (Replicate(), Replicate(), Replicate()),
    }
    for name, (of_value, of_samples, of_output) in rules.items():
        placed = [
            distribute_tensor(tensor, mesh, [place]).requires_grad_()
            for tensor, place in zip(case.tensors, (of_value, of_samples, of_samples), strict=True)
        ]
        output = msdeform.ms_deform_attn(placed[0], case.shapes, None, placed[1], placed[2])
        assert isinstance(output, DTensor)
        assert output.placements == (of_output,), (name, output.placements)
        assert_close(output.full_tensor(), reference(case), 1e-5, name)
        output.backward(distribute_tensor(grad_output, mesh, [of_output]))
        for what, tensor, exact in zip(("value", "locations", "weights"), placed, expected, strict=True):
            assert tensor.grad is not None
            assert_close(tensor.grad.full_tensor(), exact, 1e-5, f"{name}: gradient of {what}")
    # Heads that do not divide are gathered, not cut in the middle.
    odd = make_case(batch=1, heads=3 if world == 2 else 6)
    placed = [distribute_tensor(tensor, mesh, [Shard(2)]) for tensor in odd.tensors]
    output = msdeform.ms_deform_attn(placed[0], odd.shapes, None, placed[1], placed[2])
    assert_close(output.full_tensor(), reference(odd), 1e-5, "odd heads")


def check_sharding_from_offsets(world: int) -> None:
    """The operator from offsets, after `check_sharding` has registered the rules."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    generator = torch.Generator().manual_seed(4)
    shapes, images, queries = [(5, 7), (3, 4)], world, 4 * world
    sizes = ((images, 47, 4, 8), (images, queries, 2, 4), (images, queries, 4, 2, 3, 2), (images, queries, 4, 2, 3))
    given = [torch.rand(size, generator=generator) for size in sizes]
    upstream = torch.randn(images, queries, 32, generator=generator)
    exact = [tensor.clone().requires_grad_() for tensor in given]
    expected = msdeform.ms_deform_attn_from_offsets(exact[0], shapes, *exact[1:])
    gradients = torch.autograd.grad(expected, exact, upstream)
    # Placements of value, references, samples and the output they must give; and of the references' gradient.
    rules = {
        "images": (Shard(0), Shard(0), Shard(0), Shard(0), Shard(0)),
        "queries": (Replicate(), Shard(1), Shard(1), Shard(1), Shard(1)),
        "heads": (Shard(2), Replicate(), Shard(2), Shard(2), Partial()),
        "nothing": (Replicate(), Replicate(), Replicate(), Replicate(), Replicate()),
    }
    for name, (of_value, of_references, of_samples, of_output, of_gradient) in rules.items():
        places = (of_value, of_references, of_samples, of_samples)
        placed = [
            distribute_tensor(tensor, mesh, [place]).requires_grad_()
            for tensor, place in zip(given, places, strict=True)
        ]
        output = msdeform.ms_deform_attn_from_offsets(placed[0], shapes, *placed[1:])
        assert isinstance(output, DTensor)
        assert output.placements == (of_output,), (name, output.placements)
        assert_close(output.full_tensor(), expected, 1e-5, name)
        found = torch.autograd.grad(output, placed, distribute_tensor(upstream, mesh, [of_output]))
        assert found[1].placements == (of_gradient,), (name, found[1].placements)
        for tensor, correct in zip(found, gradients, strict=True):
            assert_close(tensor.full_tensor(), correct, 1e-5, name)
    # Only some gradients, and references that every image shares.
    offsets = distribute_tensor(given[2], mesh, [Shard(0)]).requires_grad_()
    shared = distribute_tensor(given[1][:1], mesh, [Replicate()])
    output = msdeform.ms_deform_attn_from_offsets(
        given_as(mesh, given[0]), shapes, shared, offsets, given_as(mesh, given[3])
    )
    output.sum().backward()
    assert offsets.grad is not None


def given_as(mesh: Any, tensor: torch.Tensor) -> Any:
    """The images of a tensor, shared out."""
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(tensor, mesh, [Shard(0)])


def layer() -> msdeform.MSDeformAttn:
    torch.manual_seed(5)
    return msdeform.MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=2)


def train(module: torch.nn.Module, batch: slice) -> list[float]:
    """Three steps; the losses are those of the process's own images."""
    generator = torch.Generator().manual_seed(9)
    shapes = [(6, 8), (3, 4)]
    query = torch.randn(4, 10, 32, generator=generator)[batch]
    points = torch.rand(4, 10, 2, 2, generator=generator)[batch]
    source = torch.randn(4, 60, 32, generator=generator)[batch]
    target = torch.randn(4, 10, 32, generator=generator)[batch]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (module(query, points, source, shapes) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_training(rank: int, world: int) -> None:
    alone = layer()
    train(alone, slice(0, 4))
    together = DistributedDataParallel(layer())
    share = 4 // world
    losses = train(together, slice(rank * share, (rank + 1) * share))
    assert losses[-1] < losses[0]
    for name, parameter in together.module.named_parameters():
        assert_close(parameter, alone.get_parameter(name), 1e-5, name)


def work(what: str, rank: int, world: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        check_training(rank, world)
        if what == "all":
            check_sharding(world)
            check_sharding_from_offsets(world)
    finally:
        dist.destroy_process_group()
    print(f"rank {rank} of {world} done", flush=True)


def main() -> None:
    what, port, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    if what == "all":
        # Once, before the processes fork: each of them would take seconds to import it.
        import torch.distributed.tensor  # noqa: F401
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(what, rank, world)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [rank for rank, process in enumerate(processes) if process.exitcode != 0]
    if failed:
        sys.exit(f"failed: ranks {failed} of {world}")


if __name__ == "__main__":
    main()
