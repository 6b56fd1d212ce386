"""A layer of an RT-DETR decoder in ONNX Runtime Web, in the browser, against the same in float64.

`MSDEFORM_ONNX_WEB` is the folder `dist` of the package onnxruntime-web, `MSDEFORM_COMMAND` the command that writes the
models. A server of this process has the files: Playwright's own answers would take seconds for the runtime.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx_web.serve import FORMS, PAGE, address, server_of, write_files
from playwright.sync_api import Page, expect

BOUND = 1e-5
# The slowest of two cores that others use computes WebGPU's shaders in software.
PATIENCE_MS = 300_000


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is."""
    folder = tmp_path_factory.mktemp("served")
    write_files(folder, Path(os.environ["MSDEFORM_ONNX_WEB"]), os.environ["MSDEFORM_COMMAND"])
    with server_of(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield address(server)
        server.shutdown()


@pytest.fixture
def answered_here(origin: str) -> tuple[str, ...]:
    """Where the requests of these pages may go."""
    return (origin,)


@pytest.mark.parametrize("provider", ["wasm", "webgpu"])
def test_the_layer_in_the_page_is_exact_in_every_form(page: Page, origin: str, provider: str) -> None:
    page.goto(f"{origin}{PAGE.name}?provider={provider}&runs=1")
    expect(page.locator("#state")).not_to_have_text("Running", timeout=PATIENCE_MS)
    expect(page.locator("#state")).to_have_text("Done")
    rows = [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()]
    print(*rows, sep="\n")
    assert [(form, ran) for form, ran, *_ in rows] == [(form, provider) for form in FORMS]
    for _, _, error, _ in rows:
        assert float(error) <= BOUND  # NaN is not.
    if provider == "webgpu":
        # Otherwise the nodes may have run in WebAssembly.
        assert page.evaluate("async () => (await navigator.gpu.requestAdapter()).info.architecture") == "swiftshader"
