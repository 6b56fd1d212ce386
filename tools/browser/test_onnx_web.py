"""A layer of an RT-DETR decoder in ONNX Runtime Web, in the browser, against the same in float64.

`MSDEFORM_ONNX_WEB` is the folder `dist` of the package onnxruntime-web, `MSDEFORM_COMMAND` the command that writes the
model. Pages come from the test itself: the browser's requests are answered here and leave no process.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Page, Route, expect

# WebGPU wants a secure context, which this name is without certificates.
ORIGIN = "http://localhost/"
TYPES = {".html": "text/html", ".json": "application/json", ".mjs": "text/javascript", ".wasm": "application/wasm"}
PAGE, DIST = Path(__file__).parent / "onnx_web", Path(os.environ["MSDEFORM_ONNX_WEB"])
# The forms of `msdeform onnx rewrite` that contain standard operators only.
FORMS = ("gridsample",)
LEVELS, QUERIES, HEADS, CHANNELS, POINTS = ((80, 80), (40, 40), (20, 20)), 300, 8, 32, 4
BOUND = 1e-5
# The slowest of two cores that others use computes WebGPU's shaders in software.
PATIENCE_MS = 300_000


@pytest.fixture
def answered_here() -> tuple[str, ...]:
    """Where the requests of these pages may go."""
    return (ORIGIN,)


@pytest.fixture(scope="module", params=FORMS)
def files(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in a form, its inputs, and its output in float64."""
    folder = tmp_path_factory.mktemp(request.param)
    inputs = random_inputs()
    (folder / "operator.onnx").write_bytes(operator_model(inputs))
    command = [os.environ["MSDEFORM_COMMAND"], "onnx", "rewrite", "operator.onnx", "--to", request.param]
    subprocess.run([*command, "-o", "model.onnx"], cwd=folder, check=True, capture_output=True)
    (folder / "call.json").write_text(json.dumps({"inputs": {name: array.shape for name, array in inputs.items()}}))
    for name, array in {**inputs, "expected": in_float64(*inputs.values())}.items():
        (folder / f"{name}.bin").write_bytes(array.tobytes())
    return folder


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


@pytest.mark.parametrize("provider", ["wasm", "webgpu"])
def test_the_layer_in_the_page_is_exact(page: Page, files: Path, provider: str) -> None:
    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(ORIGIN).partition("?")[0]
        folder = next(folder for folder in (DIST.parent, PAGE, files) if (folder / name).is_file())
        kind = TYPES.get(Path(name).suffix, "application/octet-stream")
        route.fulfill(body=(folder / name).read_bytes(), content_type=kind)

    page.route(f"{ORIGIN}**", answer)
    page.goto(f"{ORIGIN}page.html?provider={provider}")
    expect(page.locator("#state")).not_to_have_text("Running", timeout=PATIENCE_MS)
    expect(page.locator("#state")).to_have_text("Done")
    [row] = page.locator("tbody tr").all()
    name, error, time = row.locator("td").all_inner_texts()
    print(f"{files.name}, {provider}: error {error}, {time}")
    assert name == provider and float(error) <= BOUND  # NaN is not.
    if provider == "webgpu":
        # Otherwise the nodes may have run in WebAssembly.
        assert page.evaluate("async () => (await navigator.gpu.requestAdapter()).info.architecture") == "swiftshader"
