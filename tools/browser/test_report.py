"""The report of the committed GPU record in a browser: numbers, filters, sorting, colour schemes, a phone, paper."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from coloraide import Color
from conftest import colours
from playwright.sync_api import Page, expect

RECORDS = Path(__file__).parents[2] / "records"
CASE = ["workload", "batch", "queries", "locations", "layout", "direction", "dtype"]


@pytest.fixture(autouse=True)
def report(page: Page, quiet: None) -> None:
    """Opens the page."""
    page.goto(Path(os.environ["MSDEFORM_REPORT"]).as_uri())


def measurements() -> list[dict[str, Any]]:
    """What documents quote of a GPU, in the mode that the report's table is about."""
    releases = json.loads((RECORDS / "manifest.json").read_text())["releases"]
    files = [
        RECORDS / device / quoted["record"] / "record.json" for device, quoted in releases.items() if "record" in quoted
    ]
    records = [json.loads(file.read_text()) for file in files]
    (record,) = [record for record in records if record["device"]["kind"] == "cuda"]
    return [row for row in record["measurements"] if row["mode"] == "warm_l2"]


def test_pictures_stand_before_tables_and_tables_are_folded(page: Page) -> None:
    parts = ["headlines", "forward", "backward", "ladder", "roofline", "errors", "counters", "tables"]
    selector = ".headlines, #forward, #backward, #ladder, #roofline, #errors, #counters, #tables, table"
    order = page.locator(selector).evaluate_all("found => found.map(it => it.id || it.className || it.localName)")
    assert order[: len(parts)] == parts
    expect(page.locator("details[open], table:not(details table)")).to_have_count(0)


def test_the_table_shows_the_numbers_of_the_record(page: Page) -> None:
    medians: dict[tuple[str, ...], list[float]] = {}
    for row in measurements():
        medians.setdefault(tuple(str(row[name]) for name in CASE), []).append(row["median_us"])
    dispatched = {tuple(str(row[name]) for name in CASE) for row in measurements() if row.get("dispatched")}
    rows = page.locator("#times tbody tr").evaluate_all(
        """rows => rows.map(row => {
            const cells = [...row.cells].map(cell => cell.textContent);
            return [cells.slice(0, 7), row.cells[7].dataset.key, cells[7]];
        })"""
    )
    shown = {tuple(case): (float(key), text) for case, key, text in rows}
    assert len(shown) > 10
    assert dispatched <= shown.keys()
    units = {"us": 1.0, "ms": 1e3, "s": 1e6}
    for case, (key, text) in shown.items():
        assert key in medians[case], case
        number, unit = text.split()
        assert float(number) * units[unit] == pytest.approx(key, rel=6e-3), case


def test_a_workload_and_a_dtype_are_shown_alone(page: Page) -> None:
    page.locator("details").evaluate_all("all => all.forEach(folded => { folded.open = true; })")
    rows = page.locator("#times tbody tr:not([hidden])")
    everything = rows.count()
    page.locator("#filter [name=workload]").select_option("ddetr_dec")
    page.locator("#filter [name=dtype]").select_option("f16")
    left = rows.evaluate_all("rows => rows.map(row => [row.cells[0].textContent, row.cells[6].textContent])")
    assert 0 < len(left) < everything
    assert all(row == ["ddetr_dec", "f16"] for row in left)


def test_every_table_sorts_by_click(page: Page) -> None:
    page.locator("details").evaluate_all("all => all.forEach(folded => { folded.open = true; })")
    tables = page.locator("table").all()
    assert len(tables) >= 3
    for table in tables:
        heading = table.locator("th.number").last
        for order in ["ascending", "descending"]:
            heading.locator("button").click()
            expect(heading).to_have_attribute("aria-sort", order)
            column = heading.evaluate("heading => heading.cellIndex")
            cells = table.locator(f"tbody td:nth-child({column + 1})[data-key]")
            keys = cells.evaluate_all("cells => cells.map(cell => Number(cell.dataset.key))")
            assert keys
            assert keys == sorted(keys, reverse=order == "descending")


def test_bars_show_values_when_hovered(page: Page) -> None:
    assert page.locator(".track").count() > 0
    expect(page.locator(".track:not([title]), .track[title='']")).to_have_count(0)


def test_text_is_readable_in_light_and_dark(page: Page) -> None:
    papers = []
    for scheme in ["light", "dark"]:
        page.emulate_media(color_scheme=scheme)
        ink, paper = colours(page, "body", "body")
        assert Color(ink).contrast(paper, method="wcag21") >= 4.5
        papers.append(Color(paper).luminance())
    assert papers[0] > 0.5
    assert papers[1] < 0.2


def test_it_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_it_prints_dark_on_light_with_whole_tables(page: Page) -> None:
    # Printers leave backgrounds out: the ink is dark in every scheme.
    page.emulate_media(media="print", color_scheme="dark")
    ink, paper = colours(page, "body", "body")
    assert Color(paper).luminance() > 0.9
    assert Color(ink).luminance() < 0.2
    cut = page.locator(".wide").evaluate_all(
        "all => all.filter(box => getComputedStyle(box).overflowX !== 'visible').length"
    )
    assert cut == 0
    assert len(page.pdf()) > 7_500
