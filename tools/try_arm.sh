#!/bin/sh
# Runs tests under qemu, as Linux on ARM would: try_arm.sh library | try_arm.sh wheel FOLDER
# library: the tests of the CPU backend as on any machine, with conformance, random problems and threads.
# wheel: the command of the Python package, which is unpacked into the folder, and its tests with NumPy alone, without those of
# dozens of processes, with Debian's Python.
set -eu
target=${CARGO_TARGET_DIR:-$PWD/target}
system=$target/xtask/arm64-debian
python=$system/usr/bin/emulated-python

# Debian's C library and Python for ARM.
if [ ! -e "$system/usr/bin/python3.11" ]; then
    rm -rf "$system"
    mmdebstrap --quiet --variant=extract --architectures=arm64 --skip=check/qemu --include=python3,libstdc++6 bookworm "$system"
fi

library() {
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $system"
    cargo-zigbuild test --locked --target aarch64-unknown-linux-gnu --no-fail-fast --package msdeform --lib --tests
}

wheel() {
    # The processes that tests start need qemu too: no kernel runs a program for ARM.
    cat > "$python" << END
#!/bin/sh
exec qemu-aarch64 -0 "\$0" -L '$system' '$system/usr/bin/python3.11' "\$@"
END
    chmod +x "$python"
    export PYTHONPATH="$1" PYTHONDONTWRITEBYTECODE=1
    # The note of the step; without the instructions of ARM it fails.
    "$python" -c "import platform, msdeform, numpy
print(platform.machine(), msdeform.device_info()['cpu']['instructions'], 'NumPy', numpy.__version__)" | grep '^aarch64 neon'
    "$python" "$1/bin/msdeform" --version | grep '^msdeform '
    cd bindings/python
    "$python" -m pytest --quiet -p no:cacheprovider tests/test_facts.py tests/test_first_look.py tests/test_numpy.py
}

"$@"
