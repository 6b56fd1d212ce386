#!/bin/sh
# Adds to a folder of wheels and crates the bill of materials of each wheel, which maturin wrote into it, and the checksums.
# Usage: release_files.sh FOLDER
set -eu
cd "$1"
for wheel in *.whl; do
    [ -e "$wheel" ] || continue
    unzip -p "$wheel" '*.dist-info/sboms/*.json' > "${wheel%.whl}.cyclonedx.json"
    grep --quiet CycloneDX "${wheel%.whl}.cyclonedx.json"
done
rm -f SHA256SUMS
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs --delimiter '\n' sha256sum -- > SHA256SUMS
sha256sum --check --quiet SHA256SUMS
wc --lines < SHA256SUMS
