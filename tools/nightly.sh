#!/bin/sh
# Looks for undefined behaviour and races with the nightly compiler, which alone has Miri and the sanitizers: nightly.sh miri,
# or nightly.sh tsan. Installs what is missing; any nightly version will do.
set -eu
# Those of the pinned compiler, which `cargo xtask` runs under.
unset CARGO RUSTC RUSTDOC RUSTFLAGS RUSTUP_TOOLCHAIN
target=${CARGO_TARGET_DIR:-$PWD/target}
rustup component add --toolchain nightly miri rust-src ||
    rustup toolchain install nightly --profile minimal --component miri,rust-src

miri() {
    command -v cargo-nextest > /dev/null || cargo install --locked cargo-nextest
    # Tree borrows and pointers made of integers, because rayon and crossbeam-epoch are written for them. Threads of the global
    # pool never end, which is no leak. Tests use the files, folders and variables of the machine. They also compare bits, so
    # exponentials are those of the machine, without the errors that Miri would add.
    export MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks
        -Zmiri-disable-isolation -Zmiri-deterministic-floats"
    # What has no foreign code: all of the library, the decisions of the CUDA backend, and of the Python package the plans and
    # the memory behind addresses. Left out: NVRTC is a foreign library, and Miri cannot set the time of a file, as the cubin
    # cache does. By nextest: Miri has one thread, so a process for each test keeps all cores busy, and undefined behaviour ends
    # only one test.
    CARGO_TARGET_DIR=$target/miri rustup run nightly cargo miri nextest run --locked --no-fail-fast --lib --tests \
        --package msdeform --package msdeform-cuda --package msdeform-torch --filterset \
        '(package(msdeform) + kind(lib) + binary(plan_table)) - test(/^(nvrtc|probe)::tests::|^jit::cache::/)'
}

tsan() {
    export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
    # A test asks for more memory than there is, and handles the refusal.
    export TSAN_OPTIONS="halt_on_error=1 allocator_may_return_null=1"
    status=0
    # Tests in which threads share something.
    sanitized msdeform --test cpu_plan --test cpu_threads || status=$?
    sanitized msdeform-cuda --lib -- jit:: driver:: tuning:: || status=$?
    sanitized msdeform-torch --lib --test plan_table || status=$?
    return "$status"
}

# With the standard library: the sanitizer would take its unseen synchronisation for races.
sanitized() {
    CARGO_TARGET_DIR=$target/tsan rustup run nightly cargo test --locked --no-fail-fast -Zbuild-std \
        --target x86_64-unknown-linux-gnu --package "$@"
}

"$1"
