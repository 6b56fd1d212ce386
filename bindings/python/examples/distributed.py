"""Share one call out over several processes with DTensor: by images, by queries or by heads.

pip install target/wheels/*.whl torch  # built by `cargo xtask wheel`
torchrun --nproc-per-node 2 distributed.py
"""

import os

import msdeform
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

# %% One process per device; gloo and CPUs here, nccl and GPUs there.
kind = "cuda" if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else "cpu"
if kind == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
mesh = init_device_mesh(kind, (dist.get_world_size(),))
msdeform.register_sharding()

# %% The same inputs everywhere.
torch.manual_seed(0)
shapes = [(32, 32), (16, 16)]
value = torch.randn(4, 1280, 8, 32, device=kind)
locations = torch.rand(4, 300, 8, 2, 4, 2, device=kind)
weights = torch.rand(4, 300, 8, 2, 4, device=kind).flatten(-2).softmax(-1).unflatten(-1, (2, 4))
alone = msdeform.ms_deform_attn(value, shapes, None, locations, weights)

# %% Each way of sharing it out. The output stays where it was computed.
ways = {
    "images": (Shard(0), Shard(0)),
    "queries": (Replicate(), Shard(1)),
    "heads": (Shard(2), Shard(2)),
}
for name, (of_value, of_samples) in ways.items():
    output = msdeform.ms_deform_attn(
        distribute_tensor(value, mesh, [of_value]),
        shapes,
        None,
        distribute_tensor(locations, mesh, [of_samples]),
        distribute_tensor(weights, mesh, [of_samples]),
    )
    difference = float((output.full_tensor() - alone).abs().max())
    if dist.get_rank() == 0:
        local = tuple(output.to_local().shape)
        print(f"by {name:8} each process has {local} of {tuple(output.shape)}, difference {difference:.0e}")
    assert difference < 1e-5
dist.destroy_process_group()
