"""The page about runtimes has the figures of its record."""

import json

from measure_runtimes import BEGIN, PAGE, RECORD, page, tables


def test_the_page_has_the_tables_of_the_record():
    text = PAGE.read_text()
    assert page(text, json.loads(RECORD.read_text())) == text, "run tools/measure_runtimes.py"
    assert BEGIN in text


def test_nan_is_larger_than_any_error_and_refusals_have_no_figures():
    row = {"runtime": "one", "version": "1.0", "form": "gather", "dtype": "f32", "note": "", "passed": True}
    good = {**row, "site": "decoder", "error": 1e-7, "edge_error": None, "ms": 1.0}
    worse = {**row, "site": "encoder", "error": 3e-7, "edge_error": 2e-7, "ms": 25.0}
    refused = {**row, "runtime": "two", "site": "decoder", "note": "does not run: x", "passed": None}
    refused |= {"error": None, "edge_error": None, "ms": None}
    missing = {**row, "runtime": "three", "version": None, "note": "not installed: pip install three"}
    record = {"date": "2026-01-01", "msdeform": "1", "cpu": "none", "rows": [good, worse, refused, missing]}
    text = tables(record)
    assert "| one 1.0 | gather | f32 | 3.0e-07 | NaN | 1.0 | correct |" in text
    assert "| two 1.0 | gather | f32 |  |  |  | does not run |" in text
    assert "- two 1.0, gather in f32: x." in text
    assert "Not run: three (not installed: pip install three)." in text
