"""The published crates: crates.py contents | minimal-versions | package FOLDER | package-candle FOLDER

contents: every crate has its metadata and contains all of its files (kernels, workloads, licences); builds nothing.
minimal-versions: they compile with the oldest versions of their direct dependencies.
package: makes the tarballs, builds every crate from its own and those that it depends on, copies them into a folder.
package-candle: the same for the crate for candle. It is in another workspace, so the crates of the tree take the place
of the registry's, which may not have them yet.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

CARGO = os.environ.get("CARGO", "cargo")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute()
CANDLE = "bindings/candle/Cargo.toml"


def output(*command: str | Path) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def published(manifest: str) -> list[dict]:
    """The published crates of the workspace that has this manifest."""
    listed = output(CARGO, "metadata", "--locked", "--no-deps", "--format-version=1", "--manifest-path", manifest)
    # `publish = false` is an empty list of registries.
    return [package for package in json.loads(listed)["packages"] if package["publish"] is None]


def contents() -> None:
    """Checks metadata and files."""
    crates = published("Cargo.toml") + published(CANDLE)
    for crate in crates:
        fields = ["description", "license", "repository", "rust_version", "readme"]
        missing = [field for field in fields if not crate[field]]
        assert not missing, f"{crate['name']} has no {missing}"
        assert crate["metadata"]["docs"]["rs"], f"{crate['name']} has no metadata for docs.rs"
        manifest = Path(crate["manifest_path"])
        listing = output(CARGO, "package", "--locked", "--list", "--allow-dirty", "--manifest-path", manifest)
        files = output("git", "-C", manifest.parent, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        needed = {name for name in files.split("\0") if (manifest.parent / name).is_file()}
        missing = (needed | {"LICENSE-APACHE", "LICENSE-MIT"}) - set(listing.splitlines())
        assert not missing, f"the package of {crate['name']} lacks {missing}"
    print(f"{len(crates)} crates")


def package(crates: list[dict], folder: Path, *options: str) -> None:
    """Packs crates. With a target folder, cargo compiles what the tarballs share once, not once for each of them."""
    command = [CARGO, "package", "--allow-dirty", "--target-dir", TARGET, *options]
    subprocess.run(command, check=True)
    for crate in crates:
        shutil.copy(TARGET / "package" / f"{crate['name']}-{crate['version']}.crate", folder)
    print(f"{len(crates)} crates")


def main() -> None:
    """Runs one of the commands."""
    command, *folder = sys.argv[1:]
    crates = published("Cargo.toml")
    if command == "contents":
        contents()
    elif command == "minimal-versions":
        caches = [TARGET / "xtask/minimal-versions", TARGET / "minimal-versions"]
        script = Path(__file__).with_name("minimal_versions.sh")
        subprocess.run([script, *caches, *[crate["name"] for crate in crates]], check=True)
    elif command == "package":
        names = [option for crate in crates for option in ("--package", crate["name"])]
        package(crates, Path(*folder), "--locked", *names)
    elif command == "package-candle":
        paths = {crate["name"]: Path(crate["manifest_path"]).parent for crate in crates}
        patches = [f"patch.crates-io.{name}.path={json.dumps(str(path))}" for name, path in paths.items()]
        options = [option for patch in patches for option in ("--config", patch)]
        package(published(CANDLE), Path(*folder), "--exclude-lockfile", "--manifest-path", CANDLE, *options)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"error: {error}")
