#!/bin/sh
# Gives random bytes to a reader of `fuzz/src`: fuzz.sh TARGET SECONDS; fuzz.sh --list names the targets. The fuzzer prints the
# file of a finding: fix the reader, and add the file to `fuzz/seeds`, which every test run reads.
set -eu
# Those of the pinned compiler, which `cargo xtask` runs under.
unset CARGO RUSTC RUSTDOC RUSTFLAGS RUSTUP_TOOLCHAIN
fuzz() { rustup run nightly cargo fuzz "$@"; }
if [ "$1" = --list ]; then
    fuzz list --fuzz-dir fuzz > /dev/null && exec ls fuzz/seeds
    echo 'fuzzing needs a nightly compiler (`rustup toolchain install nightly`) and cargo-fuzz (`cargo install cargo-fuzz`)' >&2
    exit 1
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
corpus=$target/fuzz-corpus/$1
findings=$target/fuzz-findings/$1
mkdir -p "$corpus" "$findings"
# A reader may ask for too much memory if it handles the refusal.
export ASAN_OPTIONS=allocator_may_return_null=1
# Link-time optimisation takes minutes and finds nothing.
export CARGO_PROFILE_RELEASE_LTO=false MSDEFORM_READER="$1"
# The fuzzer reads the seeds after the corpus and writes to the corpus only. No reader needs more memory or time than this.
fuzz run --fuzz-dir fuzz --features libfuzzer --target-dir "$target/fuzz" readers "$corpus" "$PWD/fuzz/seeds/$1" -- \
    -artifact_prefix="$findings/" -rss_limit_mb=2048 -timeout=20 -max_total_time="$2"
