"""Export a layer and the plain operator, compile them ahead of time and write what `main.cpp` needs to run them.

python export.py FOLDER [cpu|cuda]
"""

import sys
from pathlib import Path

import msdeform
import torch
from torch._inductor import aoti_compile_and_package

SHAPES = [(20, 30), (10, 15)]
folder, device = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu"


# %% A layer whose image size is fixed and whose number of queries is not, and the operator with its shapes in a tensor.
# On a GPU they are numbers: to read a tensor there is to wait for it.
class Decoder(torch.nn.Module):
    """One attention layer, and one call of the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = msdeform.MSDeformAttn(d_model=64, n_levels=2, n_heads=4, n_points=4)

    def forward(
        self,
        query: torch.Tensor,
        reference: torch.Tensor,
        pixels: torch.Tensor,
        locations: torch.Tensor,
        weights: torch.Tensor,
        shapes: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attends twice."""
        attended = self.attention(query, reference, pixels, SHAPES)
        value = pixels.unflatten(2, (4, 16))
        sizes = SHAPES if value.is_cuda else shapes
        return attended, msdeform.ms_deform_attn(value, sizes, None, locations, weights)


def inputs(queries: int) -> tuple[torch.Tensor, ...]:
    """As many queries as wanted."""
    tensors = (
        torch.randn(1, queries, 64),
        torch.rand(1, queries, 2, 2),
        torch.randn(1, 750, 64),
        torch.rand(1, queries, 4, 2, 4, 2),
        torch.rand(1, queries, 4, 2, 4),
        torch.tensor(SHAPES),
    )
    return tuple(tensor.to(device) for tensor in tensors)


torch.manual_seed(0)
model = Decoder().eval().to(device)
queries = torch.export.Dim("queries", min=2, max=2000)
of_queries = {1: queries}
with torch.no_grad():
    program = torch.export.export(
        model, inputs(100), dynamic_shapes=(of_queries, of_queries, {}, of_queries, of_queries, {})
    )
print(sorted({str(node.target) for node in program.graph.nodes if "msdeform" in str(node.target)}))
# Compiling PyTorch's headers apart pays from the second package on.
aoti_compile_and_package(
    program,
    package_path=str(folder / "decoder.pt2"),
    inductor_configs={"aot_inductor.precompile_headers": False},
)

# %% Other inputs, with another number of queries, and what Python makes of them.
given = inputs(321)
with torch.no_grad():
    expected = model(*given)
for name, tensor in zip(
    ("query", "reference", "pixels", "locations", "weights", "shapes", "attended", "sampled"),
    (*given, *expected),
    strict=True,
):
    tensor.cpu().contiguous().numpy().tofile(folder / f"{name}.bin")
