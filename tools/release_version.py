"""The version of a release in the manifests and the changelog. Usage, in the root of the tree:

release_version.py set OLD NEW   writes a new version; what is unreleased in the changelog gets it, with the date
release_version.py notes VERSION prints what the changelog has about a version, or about what is unreleased
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

MANIFESTS = ["Cargo.toml", "bindings/candle/Cargo.toml"]
LOCKS = ["Cargo.lock", "bindings/candle/Cargo.lock"]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def parse(version: str) -> tuple[int, ...]:
    """The three numbers of a version."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{version} is not a version such as 0.2.0"
    return tuple(map(int, version.split(".")))


def bump(manifest: str, old: str, new: str) -> str:
    """The manifest with another version of the workspace and of its crates.

    The version may stay the same: the changelog refuses one that was released.
    """
    assert parse(new) >= parse(old), f"{new} is before {old}"
    ours = rf'^(version = |msdeform.*version = )"{re.escape(old)}"'
    return re.sub(ours, rf'\g<1>"{new}"', manifest, flags=re.MULTILINE)


def bump_lock(lock: str, old: str, new: str) -> str:
    """A lock file with another version of our crates, as `cargo update --workspace` writes it with a registry."""
    ours = rf'^(name = "(?:fuzz|msdeform.*|xtask.*)"\nversion = )"{re.escape(old)}"'
    return re.sub(ours, rf'\g<1>"{new}"', lock, flags=re.MULTILINE)


def notes(changelog: str, version: str) -> str:
    """The section of a version in the changelog."""
    found = re.search(rf"^## \[{re.escape(version)}\].*\n((?:(?!## \[).*\n?)*)", changelog, flags=re.MULTILINE)
    assert found, f"the changelog has no section of {version}"
    return found.group(1).strip()


def release(changelog: str, version: str, date: str) -> str:
    """The changelog with what is unreleased under its version."""
    heading = f"## [{version}]"
    assert heading not in changelog, f"the changelog has {version} already"
    text = notes(changelog, "Unreleased")
    assert re.search(r"^- ", text, flags=re.MULTILINE), "the changelog has nothing unreleased"
    unknown = set(re.findall(r"^### (.*)", text, flags=re.MULTILINE)) - set(KINDS)
    assert not unknown, f"the changelog has sections {unknown}, expected some of {KINDS}"
    return changelog.replace("## [Unreleased]", f"## [Unreleased]\n\n{heading} - {date}", 1)


def main() -> None:
    """Changes files or prints notes."""
    changelog = Path("CHANGELOG.md")
    command, *versions = sys.argv[1:]
    if command == "set":
        old, new = versions
        texts = {changelog: release(changelog.read_text(), new, str(datetime.date.today()))}
        texts |= {Path(name): bump(Path(name).read_text(), old, new) for name in MANIFESTS}
        texts |= {Path(name): bump_lock(Path(name).read_text(), old, new) for name in LOCKS}
        for path, text in texts.items():
            path.write_text(text)
    else:
        (version,) = versions
        text = changelog.read_text()
        print(notes(text, version if f"## [{version}]" in text else "Unreleased"))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"error: {error}")
