"""The browser of the machine, and what holds for every page: no error, and no request that leaves the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    """Chromium of the system: no registry has Playwright's own. It computes WebGPU in software."""
    webgpu = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
    vulkan = ["--enable-features=Vulkan", "--use-vulkan=swiftshader"]
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", *webgpu, *vulkan]
    return {"executable_path": os.environ["MSDEFORM_BROWSER"], "args": arguments}


@pytest.fixture
def answered_here() -> tuple[str, ...]:
    """How addresses begin that a test answers itself; none unless it says so."""
    return ()


@pytest.fixture(autouse=True)
def quiet(page: Page, answered_here: tuple[str, ...]) -> Iterator[None]:
    """Fails a test whose page reports an error or asks for something outside."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    own = ("file:", "data:", *answered_here)
    page.on("request", lambda request: found.append(request.url) if not request.url.startswith(own) else None)
    yield
    assert not found


def colours(page: Page, front: str, back: str) -> tuple[str, str]:
    """The colour of the text of one element and of the background of another, as CSS writes them."""
    style = "(element, name) => getComputedStyle(element)[name]"
    ink = page.locator(front).first.evaluate(style, "color")
    return ink, page.locator(back).first.evaluate(style, "backgroundColor")
