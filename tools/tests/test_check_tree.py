"""A citation names the whole folder."""

from pathlib import Path

from check_tree import is_cited


def test_a_citation_names_the_whole_folder():
    run = Path("records/h200/2026-01-01-abc")
    assert is_cited(run, "from `records/h200/2026-01-01-abc`.")
    assert is_cited(run, "records/h200/2026-01-01-abc")
    assert not is_cited(run, "from `records/h200/2026-01-01-abc-2`.")
