#!/bin/sh
# Compiles the published crates with the oldest versions that they accept of their direct dependencies.
# Usage: minimal_versions.sh FOLDER TARGET-FOLDER PACKAGE...
set -eu
copy=$1 target=$2
shift 2
rm -rf "$copy"
mkdir -p "$copy"
# The Python package and the tools are not published as crates, and ask for other versions.
git ls-files -z Cargo.toml crates | xargs -0 cp --parents --target-directory "$copy"
cd "$copy"
sed -i 's|^members = .*|members = ["crates/*"]|' Cargo.toml
# The option belongs to nightly compilers; the compiler is the pinned one.
RUSTC_BOOTSTRAP=1 cargo -Zdirect-minimal-versions generate-lockfile
for package; do set -- "$@" --package "$package"; shift; done
cargo check --locked --lib --bins --target-dir "$target" "$@"
