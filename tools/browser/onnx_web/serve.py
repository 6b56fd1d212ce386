"""Serves a page that runs a layer of an RT-DETR decoder in ONNX Runtime Web: serve.py DIST [--port PORT]

DIST is the folder `dist` of the package onnxruntime-web. The page shows how far the outputs are from those in float64.
The script needs the command `msdeform` and the packages numpy and onnx.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

PAGE = Path(__file__).with_name("page.html")
# What exporters write, and what `msdeform onnx rewrite` chooses for this runtime: both are standard operators only.
FORMS = {"gridsample": "--to", "ort-web": "--for"}
LEVELS, QUERIES, HEADS, CHANNELS, POINTS = ((80, 80), (40, 40), (20, 20)), 300, 8, 32, 4


class Files(SimpleHTTPRequestHandler):
    """The files of a folder, without a line on stderr for each request."""

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


def server_of(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server for this machine only."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Files, directory=str(folder)))


def address(server: ThreadingHTTPServer) -> str:
    """Where the files are. WebGPU wants a secure context, which this name is without certificates."""
    return f"http://localhost:{server.server_port}/"


def write_files(folder: Path, dist: Path, command: str) -> None:
    """The page with the runtime, the models, their inputs, and their output in float64."""
    (folder / "dist").symlink_to(dist.resolve())
    (folder / PAGE.name).symlink_to(PAGE)
    inputs = random_inputs()
    (folder / "operator.onnx").write_bytes(operator_model(inputs))
    for form, option in FORMS.items():
        words = [command, "onnx", "rewrite", "operator.onnx", option, form, "-o", f"{form}.onnx"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    call = {"inputs": {name: array.shape for name, array in inputs.items()}, "models": list(FORMS)}
    (folder / "call.json").write_text(json.dumps(call))
    for name, array in {**inputs, "expected": in_float64(*inputs.values())}.items():
        (folder / f"{name}.bin").write_bytes(array.tobytes())


def random_inputs() -> dict[str, NDArray[Any]]:
    """Samples lie everywhere, some of them outside."""
    random = np.random.default_rng(20)
    samples = (1, QUERIES, HEADS, len(LEVELS), POINTS)
    pixels = sum(height * width for height, width in LEVELS)
    weights = random.random(samples)
    return {
        "value": random.standard_normal((1, pixels, HEADS, CHANNELS)).astype(np.float32),
        "sampling_locations": random.uniform(-0.1, 1.1, (*samples, 2)).astype(np.float32),
        "attention_weights": (weights / weights.sum((3, 4), keepdims=True)).astype(np.float32),
    }


def operator_model(inputs: dict[str, NDArray[Any]]) -> bytes:
    """One node of msdeform's."""
    starts = np.cumsum([0, *(height * width for height, width in LEVELS)])[:-1]
    constants = {"spatial_shapes": np.array(LEVELS), "level_start_index": starts}
    value, *samples = inputs
    node = helper.make_node("MSDeformAttn", [value, *constants, *samples], ["output"], domain="msdeform")
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, QUERIES, HEADS * CHANNELS])
    arrays = [numpy_helper.from_array(array.astype(np.int64), name) for name, array in constants.items()]
    graph = helper.make_graph([node], "layer", given, [output], arrays)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("msdeform", 1)]
    written: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return written


def in_float64(value: NDArray[Any], locations: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """The definition of the operator, pixel by pixel."""
    value, locations, weights = (array[0].astype(np.float64) for array in (value, locations, weights))
    output, start = np.zeros((QUERIES, HEADS, CHANNELS)), 0
    heads = np.arange(HEADS)[:, None]
    for level, (height, width) in enumerate(LEVELS):
        pixels = value[start : start + height * width]
        start += height * width
        centre = locations[:, :, level] * (width, height) - 0.5
        first = np.floor(centre).astype(np.int64)
        for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
            column, row = np.moveaxis(first + corner, -1, 0)
            share = np.prod(1 - np.abs(centre - (first + corner)), axis=-1) * weights[:, :, level]
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            found = pixels[np.where(inside, row * width + column, 0), heads]
            output += ((share * inside)[..., None] * found).sum(2)
    return output


def main(arguments: list[str] | None = None) -> int:
    """Serves the page until it is interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dist", type=Path, help="the folder `dist` of the package onnxruntime-web")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    if not (options.dist / "ort.wasm.min.mjs").is_file():
        parser.error(f"{options.dist} has no ort.wasm.min.mjs; give the folder `dist` of the package onnxruntime-web")
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), options.dist, "msdeform")
        with server_of(Path(folder), options.port) as server:
            for provider in ("wasm", "webgpu"):
                print(f"{address(server)}{PAGE.name}?provider={provider}", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
