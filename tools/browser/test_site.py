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


def test_the_demo_draws_where_a_query_samples(page: Page) -> None:
    visit(page, "docs/demo.html")
    circles, summary = page.locator("#sampling-demo circle"), page.locator("#sampling-summary")
    expect(circles).to_have_count(8 * 3 * 4)
    expect(summary).to_contain_text("Reference (0.500, 0.500): 96 samples read")
    page.locator("#sampling-demo select").select_option(label="head 0")
    expect(circles).to_have_count(3 * 4)
    # On the smallest level, 6 pixels wide, the last samples lie outside: 10 pixels there and 16 on each of the others.
    expect(summary).to_contain_text("12 samples read 42 pixels")
    # Head 0 looks to the right: point p lies p + 1 pixels of its level from the reference.
    places = circles.evaluate_all("all => all.map(it => [it.dataset.x, it.dataset.y].map(Number))")
    wanted = [[0.5 + (point + 1) / width, 0.5] for width in (24, 12, 6) for point in range(4)]
    assert places == [pytest.approx(place) for place in wanted]
    before = summary.inner_text()
    picture = page.locator("#sampling-demo > svg")
    box = picture.bounding_box()
    assert box is not None
    # The upper left corner of the first level, near which some pixels of a sample lie outside.
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    expect(summary).not_to_have_text(before)
    picture.focus()
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    expect(summary).to_contain_text("Reference (0.000,")
    outside = float(summary.inner_text().rpartition("output is ")[2].rstrip("."))
    assert 0 < outside < 1
