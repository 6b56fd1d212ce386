#!/bin/sh
# Runs tests or commands under Wine: try_windows.sh library, or try_windows.sh commands
# library: the tests of the CPU backend, of files, of the tuning file, and of what the CUDA backend does without a GPU.
# commands: the main commands of msdeform.exe, from the same sources as the wheel's, in an empty folder.
set -eu
triple=x86_64-pc-windows-gnu
target=${CARGO_TARGET_DIR:-$PWD/target}
wine=$PWD/tools/run_in_wine.sh
export WINEPREFIX="$target/xtask/wine"

library() {
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER="$wine"
    status=0
    cargo test --locked --target $triple --no-fail-fast --package msdeform --lib --tests || status=$?
    # Other tests of the CUDA backend need a GPU.
    cargo test --locked --target $triple --no-fail-fast --lib \
        --package msdeform-files --package msdeform-cuda || status=$?
    return "$status"
}

msdeform() { "$wine" "$target/$triple/debug/msdeform.exe" "$@"; }

commands() {
    cargo build --locked --target $triple --package msdeform-cli
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cp docs/examples/tiny_decoder.safetensors "$folder/tensors.safetensors"
    cd "$folder"
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
    echo 'test result: ok. 7 passed'
}

"$1"
