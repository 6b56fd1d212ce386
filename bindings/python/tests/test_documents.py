"""What a package index shows, and what the wheel must have."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
REPOSITORY = "https://github.com/msdeform/msdeform/"


def test_links_of_the_readme_work_on_the_package_index() -> None:
    """It is shown there without the repository around it, so a relative link leads nowhere."""
    text = (PACKAGE / "README.md").read_text()
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r'(?:src|href|srcset)="([^"]+)"', text)
    assert len(links) > 5
    for link in links:
        assert link.startswith(("https://", "#")), f"{link} is relative"
        if link.startswith(REPOSITORY) and (ROOT / "Cargo.toml").is_file():
            path = re.sub(r"^(blob|tree|raw)/main/", "", link.removeprefix(REPOSITORY)).split("#")[0]
            assert (ROOT / path).exists(), f"{link} leads nowhere"


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "bindings/python/README.md"])
def test_the_first_line_that_installs_the_package_works_today(page: str) -> None:
    """The package is not on PyPI yet, so a page first tells the reader to build the wheel."""
    if not (ROOT / page).is_file():
        pytest.skip("not in a checkout")
    lines = [line for line in (ROOT / page).read_text().splitlines() if "pip install" in line]
    assert lines and lines[0].startswith("cargo xtask wheel && pip install target/wheels/*.whl")


def test_the_wheel_has_the_licences() -> None:
    try:
        files = importlib.metadata.files("msdeform") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed from a wheel")
    found = {Path(file).name: file for file in files if "licenses" in Path(file).parts}
    assert set(found) == {"LICENSE-APACHE", "LICENSE-MIT"}
    for name, file in found.items():
        assert file.read_text() == (ROOT / name).read_text()
