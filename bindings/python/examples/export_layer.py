"""Export a layer to a program that runs without its Python source, for any number of queries.

pip install target/wheels/*.whl torch  # built by `cargo xtask wheel`
python export_layer.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import msdeform
import torch

SHAPES = [(20, 30), (10, 15)]


# %% A layer whose image size is fixed and whose number of queries is not.
class Decoder(torch.nn.Module):
    """One attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = msdeform.MSDeformAttn(d_model=64, n_levels=2, n_heads=4, n_points=4)

    def forward(self, query: torch.Tensor, reference: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        """Attends."""
        return self.attention(query, reference, pixels, SHAPES)


torch.manual_seed(0)
layer = Decoder().eval()
pixels = torch.randn(1, 750, 64)
queries = torch.export.Dim("queries", min=2, max=2000)
program = torch.export.export(
    layer,
    (torch.randn(1, 100, 64), torch.rand(1, 100, 2, 2), pixels),
    dynamic_shapes={"query": {1: queries}, "reference": {1: queries}, "pixels": {}},
)
print([str(node.target) for node in program.graph.nodes if "msdeform" in str(node.target)])

# %% Saved, loaded and run with another number of queries. Importing msdeform.operator is what registers the operator:
# a process that only loads the program needs that and none of the code above.
LOAD = "import sys, msdeform.operator, torch; print('loaded:', type(torch.export.load(sys.argv[1])).__name__)"
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "decoder.pt2"
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()
    subprocess.run([sys.executable, "-c", LOAD, str(path)], check=True)
query, reference = torch.randn(1, 321, 64), torch.rand(1, 321, 2, 2)
difference = float((loaded(query, reference, pixels) - layer(query, reference, pixels)).abs().max())
print(f"largest difference: {difference:.1e}")
assert difference < 1e-5
