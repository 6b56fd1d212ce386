"""Checks of the tree that no compiler makes: check_tree.py records | wheel-parts | shared-builds"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# What committed records may take, in bytes.
MOST_BYTES = 3_000_000
# The crates of this project that the wheel links. Each of them is in every user's download.
WHEEL_PARTS = {
    "msdeform",
    "msdeform-cli",
    "msdeform-cuda",
    "msdeform-cuda-lab",
    "msdeform-files",
    "msdeform-lab",
    "msdeform-onnx",
    "msdeform-onnxruntime",
    "msdeform-python",
    "msdeform-report",
    "msdeform-torch",
}


def files(*arguments: str) -> list[Path]:
    """Files that git lists, without those whose deletion is not committed yet."""
    listed = subprocess.run(["git", "ls-files", "-z", *arguments], check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if Path(name).is_file()]


def is_cited(run: Path, pages: str) -> bool:
    """Whether a page names this folder, and not only one whose name starts like it."""
    return re.search(re.escape(str(run)) + r"(?![\w-])", pages) is not None


def records() -> str:
    """Records have a budget, and the manifest or a page names each run. Uncommitted runs of a user do not count."""
    manifest = Path("records/manifest.json").read_text()
    pages = files("--cached", "--others", "--exclude-standard", "--", "*.md", ":!records")
    text = "\n".join(page.read_text() for page in pages)
    committed = files("--", "records")
    # Files of a run are `records/<device>/<run>/<file>`; those of the device itself belong to no run.
    for run in sorted({file.parent for file in committed if len(file.parts) == 4}):
        is_quoted = f'"{run.name}"' in manifest or is_cited(run, text)
        assert is_quoted, f"neither the manifest nor a page names {run}; quote or remove it"
    size = sum(file.stat().st_size for file in committed)
    assert size <= MOST_BYTES, f"records take {size} bytes, at most {MOST_BYTES} are allowed"
    return f"{size} of {MOST_BYTES} bytes"


def crates(selection: str, form: str) -> set[str]:
    """Every crate that cargo would build on the platform of CI."""
    cargo = os.environ.get("CARGO", "cargo")
    tree = f"tree --locked --target x86_64-unknown-linux-gnu --prefix none {selection} --format".split()
    listed = subprocess.run([cargo, *tree, form], check=True, capture_output=True, text=True).stdout
    return {line.removesuffix(" (*)") for line in listed.splitlines()}


def wheel_parts() -> str:
    """The wheel links the crates above and no others of this project."""
    names = {line.split(" ")[0] for line in crates("--package msdeform-python --edges normal", "{p}")}
    linked = {name for name in names if name.startswith("msdeform")}
    assert linked == WHEEL_PARTS, f"the wheel links other crates than expected: {sorted(linked ^ WHEEL_PARTS)}"
    return f"{len(linked)} crates of ours"


def shared_builds() -> str:
    """The tested wheel shares all crates with the tests.

    Cargo compiles a crate again for every set of features, so the package has a feature that asks for what only the
    tests need. A new dependency may make the list of that feature too short.
    """
    built = crates("--package msdeform-python --features as-tests-are --edges normal,build", "{p} [{f}]")
    tested = crates("--workspace --edges normal,build,dev", "{p} [{f}]")
    # The package itself has the feature that asks.
    others = {crate for crate in built - tested if not crate.startswith("msdeform-python ")}
    assert not others, (
        "bindings/python/Cargo.toml asks for other features than the tests, which compiles everything above twice: "
        f"{others}; `cargo tree --workspace --edges normal,build,dev,features --invert CRATE` lists the features"
    )
    return f"{len(built)} crates"


CHECKS = {"records": records, "wheel-parts": wheel_parts, "shared-builds": shared_builds}

if __name__ == "__main__":
    try:
        print(CHECKS[sys.argv[1]]())
    except AssertionError as error:
        sys.exit(f"error: {error}")
