"""The site in a browser: its first page, a search that finds, both colour schemes, a phone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from coloraide import Color
from conftest import colours
from playwright.sync_api import Page, expect

SITE = Path(os.environ["MSDEFORM_SITE"])
# The first one, tables and pictures, a table wider than any screen, code.
PAGES = ["docs/start.html", "docs/story.html", "docs/kernels/fwd_tile_gather.html", "docs/LADDER.html", "docs/cli.html"]


def visit(page: Page, name: str) -> None:
    """Opens a page of the site."""
    page.goto((SITE / name).as_uri())


def test_the_first_page_has_a_picture_and_leads_everywhere(page: Page) -> None:
    visit(page, "index.html")
    expect(page.locator("h1")).to_contain_text("msdeform")
    assert page.locator(".sidebar-tree .caption").count() >= 7
    assert page.locator(".sidebar-tree a.reference").count() >= 20
    colours_of_code = page.locator(".highlight span").evaluate_all(
        "all => all.map(span => getComputedStyle(span).color)"
    )
    assert len(set(colours_of_code)) >= 3
    widths = page.locator("article img").evaluate_all(
        "all => all.filter(it => it.offsetWidth > 300 && it.naturalWidth > 300)"
    )
    assert len(widths) == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [("deterministic", ".html"), ("fwd_tile_gather", "fwd_tile_gather.html"), ("NVRTC", "troubleshooting.html")],
)
def test_the_search_finds_what_is_typed(page: Page, query: str, found: str) -> None:
    visit(page, "docs/start.html")
    page.locator(".sidebar-search").fill(query)
    page.locator(".sidebar-search").press("Enter")
    result = page.locator(f"#search-results li a[href*='{found}']").first
    result.click(timeout=60_000)
    expect(page.locator("article h1")).to_be_visible()


@pytest.mark.parametrize("name", ["docs/kernels/fwd_tile_gather.html", "docs/story.html"])
def test_text_code_and_pictures_follow_the_colour_scheme(page: Page, name: str) -> None:
    papers = []
    for scheme in ["light", "dark"]:
        page.emulate_media(color_scheme=scheme)
        visit(page, name)
        for front, back in [("article p", "body"), (".highlight pre", ".highlight")]:
            ink, paper = colours(page, front, back)
            assert Color(ink).contrast(paper, method="wcag21") >= 4.5, (scheme, front)
        pictures = page.locator("article img:visible").evaluate_all("all => all.map(image => image.src)")
        assert all(scheme in file for file in pictures)
        papers.append(Color(colours(page, "body", "body")[1]).luminance())
    assert papers[0] > 0.5
    assert papers[1] < 0.2


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_is_wider_than_the_screen(page: Page, name: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    visit(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
