"""Builds a wheel of the Python package: build_wheel.py FOLDER [--target TRIPLE] [--tried]

Without a target it is for this machine. With --tried it is compiled as the tests of the workspace are, with which it
shares all crates.

On Linux its library is made loadable in processes without Python. A Python module has undefined symbols of the
interpreter. Those of data are bound when the module is loaded, which fails without an interpreter. Weak symbols are
bound if there is an interpreter and are null otherwise; nothing that a program without Python calls reads them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from auditwheel.wheeltools import InWheelCtx
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "msdeform/_native.abi3.so"
# Of an `Elf64_Sym`: where binding and type are, and the binding that symbols get.
INFO, WEAK = 4, 2


def build(folder: Path, target: str | None, tried: bool) -> Path:
    """Calls maturin, and returns the wheel."""
    is_linux = "linux" in target if target else sys.platform == "linux"
    # Debian's GCC links for Windows, because Zig has no `dlltool`, which rustc calls.
    zig = is_linux or (target is not None and "apple" in target)
    options, rustc = ["--profile", "dist", "--compression-level", "9"], []
    if tried:
        options = ["--profile", "dev"]
    if is_linux:
        options += ["--compatibility", "manylinux2014"]
    if target:
        options += ["--target", target]
        if "apple" in target:
            rustc = ["--", "-C", f"link-arg=-F{ROOT / 'tools/macos-frameworks'}"]
    elif tried:
        # Asks for what the tests ask for. `--zig` names a target, for which cargo would compile everything once more.
        options += ["--features", "as-tests-are"]
        if is_linux:
            rustc = ["--", "-C", f"linker={ROOT / 'tools/link_by_zig.sh'}"]
            zig = False
    if zig:
        options += ["--zig"]
    folder.mkdir(parents=True, exist_ok=True)
    # A folder of its own, because maturin prints the name of the wheel for people only.
    with tempfile.TemporaryDirectory(dir=folder) as own:
        maturin = ["maturin", "build", "--locked", *options, "--out", own, *rustc]
        subprocess.run(maturin, check=True, cwd=ROOT / "bindings/python", stdout=sys.stderr)
        (wheel,) = Path(own).glob("*.whl")
        wheel = wheel.rename(folder / wheel.name)
    # Packages of AOTInductor for other systems have not been tried.
    if is_linux:
        weaken(wheel, 1 if tried else 9)
    return wheel


def weaken(wheel: Path, level: int) -> None:
    """Gives the interpreter's symbols another binding, in the library of a wheel."""
    # As maturin writes it: the same files give the same wheel at any time.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
    with InWheelCtx(wheel, wheel) as context:
        context.zip_compression_level = level
        with (context.path / LIBRARY).open("r+b") as file:
            table = ELFFile(file).get_section_by_name(".dynsym")
            wanted = [index for index, symbol in enumerate(table.iter_symbols()) if is_of_python(symbol)]
            assert wanted, "the library has no symbols of Python"
            for index in wanted:
                file.seek(table["sh_offset"] + index * table["sh_entsize"] + INFO)
                kind = file.read(1)[0] & 15
                file.seek(-1, 1)
                file.write(bytes([WEAK << 4 | kind]))


def is_of_python(symbol) -> bool:
    """Whether the interpreter has this symbol."""
    is_bound = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
    return is_bound and symbol.name.startswith(("Py", "_Py"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", metavar="TRIPLE")
    parser.add_argument("--tried", action="store_true")
    arguments = parser.parse_args()
    print(build(arguments.folder.absolute(), arguments.target, arguments.tried))
