#!/bin/sh
# Runs the main commands of msdeform.exe under Wine, in an empty folder: try_windows_command.sh PROGRAM TENSORS
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$2" "$folder/tensors.safetensors"
cd "$folder"
msdeform() { "$tools/run_in_wine.sh" "$program" "$@"; }
program=$1
msdeform --version
msdeform variants
msdeform workloads
msdeform verify --device cpu --workload edge_one_pixel,edge_outside
msdeform run tensors.safetensors --check --output output.safetensors
msdeform run tensors.safetensors --check --output NUL
test -s output.safetensors
# A file that exists is kept, with the exit code that scripts know.
code=0
msdeform run tensors.safetensors --check --output output.safetensors || code=$?
test "$code" = 2
