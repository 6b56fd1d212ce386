#!/bin/sh
# Packs an installed C library with the licences, and tries the archive: unpacks it elsewhere, compiles the example in C as its
# first lines say, with the shared library and with the static one, and runs it. Usage: pack_c_library.sh INSTALLED ARCHIVE
set -eu
cp LICENSE-APACHE LICENSE-MIT "$1"
tar --create --gzip --owner=0 --group=0 --sort=name --file "$2" --directory "$(dirname "$1")" "$(basename "$1")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar --extract --gzip --file "$2" --directory "$folder"
export PKG_CONFIG_PATH="$(echo "$folder"/*/lib)/pkgconfig" LD_LIBRARY_PATH="$(echo "$folder"/*/lib)"
for libraries in --libs --variable=static_libs; do
    # Not quoted: pkg-config prints several flags.
    cc -std=c99 crates/msdeform-c/examples/attention.c $(pkg-config --cflags msdeform) \
        $(pkg-config "$libraries" msdeform) -lm -ldl -o "$folder/program"
    "$folder/program"
done
