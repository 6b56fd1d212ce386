"""Versions of manifests, locks and the changelog."""

from pathlib import Path

import pytest
import release_version
import tomllib
from release_version import bump, bump_lock, notes, release

ROOT = Path(__file__).parents[2]
MANIFEST = """[workspace.package]
version = "0.1.0"
rust-version = "1.95"
[workspace.dependencies]
msdeform = { path = "crates/msdeform", version = "0.1.0" }
other = "0.1.0"
"""
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-01-01

- First.
"""


def test_a_version_only_grows_and_changes_where_it_is_ours():
    bumped = bump(MANIFEST, "0.1.0", "0.2.0")
    assert bumped.count('version = "0.2.0"') == 2
    assert 'other = "0.1.0"' in bumped
    assert '"1.95"' in bumped
    for wrong in ["0.0.9", "0.2", "0.2.0-rc1", "later"]:
        with pytest.raises(AssertionError):
            bump(MANIFEST, "0.1.0", wrong)
    # The first release has the version that the manifests always had.
    assert bump(MANIFEST, "0.1.0", "0.1.0") == MANIFEST
    lock = 'name = "half"\nversion = "0.1.0"\n\nname = "msdeform-cli"\nversion = "0.1.0"\n'
    assert bump_lock(lock, "0.1.0", "0.2.0") == lock.replace('cli"\nversion = "0.1.0', 'cli"\nversion = "0.2.0')


def test_all_of_the_tree_gets_the_version():
    texts = {name: (ROOT / name).read_text() for name in release_version.MANIFESTS + release_version.LOCKS}
    old = tomllib.loads(texts["Cargo.toml"])["workspace"]["package"]["version"]
    candle = bump(texts["bindings/candle/Cargo.toml"], old, "999.0.0")
    assert candle.count("999.0.0") == 3
    bumped = tomllib.loads(bump(texts["Cargo.toml"], old, "999.0.0"))["workspace"]
    ours = [value for name, value in bumped["dependencies"].items() if name.startswith("msdeform")]
    assert {bumped["package"]["version"], *(value["version"] for value in ours)} == {"999.0.0"}
    assert bump_lock(texts["bindings/candle/Cargo.lock"], old, "999.0.0").count("999.0.0") == 4
    for package in tomllib.loads(bump_lock(texts["Cargo.lock"], old, "999.0.0"))["package"]:
        assert (package["version"] == "999.0.0") == ("source" not in package), package["name"]


def test_what_is_unreleased_gets_its_version_and_date():
    released = release(CHANGELOG, "0.2.0", "2026-12-01")
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added" in released
    assert notes(released, "0.2.0") == "### Added\n\n- A thing."
    assert notes(released, "0.1.0") == "- First."
    nothing, before, odd = (released, "0.3.0"), (CHANGELOG, "0.1.0"), (CHANGELOG.replace("Added", "News"), "0.2.0")
    for changelog, version in [nothing, before, odd]:
        with pytest.raises(AssertionError):
            release(changelog, version, "2026-12-02")
