#!/bin/sh
# Compiles the example in C against an unpacked archive of the C library, as its first lines say, and runs it: with the
# shared library, and with the static one. Usage: try_c_library.sh ARCHIVE EXAMPLE
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar --extract --gzip --file "$1" --directory "$folder"
export PKG_CONFIG_PATH="$(echo "$folder"/*/lib)/pkgconfig" LD_LIBRARY_PATH="$(echo "$folder"/*/lib)"
for libraries in --libs --variable=static_libs; do
    # Words on purpose: flags.
    cc -std=c99 "$2" $(pkg-config --cflags msdeform) $(pkg-config "$libraries" msdeform) -lm -ldl -o "$folder/program"
    "$folder/program"
done
