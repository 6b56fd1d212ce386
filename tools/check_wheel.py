"""Checks that a wheel is what its name promises: check_wheel.py WHEEL [TAG] [--limit-bytes N]

It checks the parts, the size and the stable ABI (by abi3audit) of the wheel, and of its library the CPU, the oldest
system, the needed libraries, where each name comes from, and the signature that macOS requires on ARM. It prints a line
for the release notes.
"""

from __future__ import annotations

import argparse
import hashlib
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import lief

PARTS = [
    "msdeform/py.typed",
    "msdeform/_native.pyi",
    ".dist-info/licenses/LICENSE-APACHE",
    ".dist-info/licenses/LICENSE-MIT",
    ".dist-info/entry_points.txt",
    ".dist-info/sboms/",
]
# Libraries that every Windows or Python has.
WINDOWS = """advapi32 bcrypt bcryptprimitives combase kernel32 msvcrt ntdll ole32 oleaut32 pdh powrprof psapi python3
    shell32 userenv ws2_32"""
MACOS_CPUS = {"arm64": lief.MachO.Header.CPU_TYPE.ARM64, "x86_64": lief.MachO.Header.CPU_TYPE.X86_64}


def check_parts(wheel: Path, tag: str, limit_bytes: int) -> bytes:
    """The name, the size and the files; returns the library."""
    assert "-cp310-abi3-" in wheel.name, "it is not for every Python from 3.10"
    assert wheel.name.endswith(f"{tag}.whl"), f"it is not for {tag}"
    size = wheel.stat().st_size
    assert size <= limit_bytes, f"it has {size} bytes, more than {limit_bytes}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        missing = [part for part in PARTS if not any(part in name for name in names)]
        assert not missing, f"it lacks {missing}"
        libraries = [name for name in names if name in ("msdeform/_native.abi3.so", "msdeform/_native.pyd")]
        assert len(libraries) == 1, f"expected one library, found {libraries}"
        return archive.read(libraries[0])


def check_windows(library: lief.PE.Binary) -> str:
    """Every library that it needs is one of Windows or Python, and Python finds its entry."""
    needed = {entry.name.lower().removesuffix(".dll"): entry for entry in library.imports}
    foreign = [name for name in needed if name not in WINDOWS.split() and not name.startswith("api-ms-win-")]
    assert not foreign, f"it needs {foreign}"
    assert len(needed["python3"].entries) > 0, "it takes nothing from Python"
    assert any(entry.name == "PyInit__native" for entry in library.get_export().entries), "Python would find no entry"
    return f"{len(needed)} libraries, all of Windows or Python; {len(needed['python3'].entries)} names of Python"


def check_macos(library: lief.MachO.Binary, tag: str, data: bytes) -> str:
    """What macOS asks before it loads a library."""
    _, major, minor, cpu = tag.split("_", 3)
    assert library.header.cpu_type == MACOS_CPUS[cpu], f"it is for {library.header.cpu_type}"
    oldest = library.build_version.minos if library.has_build_version else library.version_min.version
    assert oldest[:2] == [int(major), int(minor)], f"it is for macOS {oldest} and newer"
    needed = [entry.name for entry in library.libraries if entry.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    foreign = [path for path in needed if not path.startswith(("/usr/lib/", "/System/Library/"))]
    assert needed, "it needs no library"
    assert not foreign, f"it needs {foreign}"
    # Apple's linker writes one number for "any library that the process has loaded", Zig's another.
    loose = [symbol.name for symbol in library.imported_symbols if symbol.library_ordinal in (0, 0xFE, -2)]
    lost = [name for name in loose if not name.startswith(("_Py", "__Py"))]
    assert loose, "it takes nothing from Python"
    assert not lost, f"no library is named for {lost}"
    signed = "not signed"
    if library.has_code_signature:
        signed = f"{check_signature(data, library.code_signature.data_offset)} signed pages"
    # Only Macs with ARM require a signature.
    assert library.has_code_signature or cpu == "x86_64", "it is not signed"
    return f"{len(needed)} libraries, all of macOS; {len(loose)} names of Python; {signed}; linked and not run"


def check_signature(data: bytes, at: int) -> int:
    """Compares pages with the hashes of the signature, which differ if a library is stripped after it was signed."""
    magic, _, count = struct.unpack_from(">III", data, at)
    assert magic == 0xFADE0CC0, "no signature where one should be"
    blobs = [at + struct.unpack_from(">II", data, at + 12 + 8 * index)[1] for index in range(count)]
    (blob,) = [blob for blob in blobs if struct.unpack_from(">I", data, blob)[0] == 0xFADE0C02]
    hashes, _, _, pages, limit = struct.unpack_from(">IIIII", data, blob + 16)
    size, kind, _, page = struct.unpack_from(">BBBB", data, blob + 36)
    assert (size, kind, limit) == (32, 2, at), "not SHA-256 of the whole file"
    for index in range(pages):
        part = data[index << page : min((index + 1) << page, limit)]
        expected = data[blob + hashes + 32 * index :][:32]
        assert hashlib.sha256(part).digest() == expected, f"page {index} of {pages} is not what was signed"
    return int(pages)


def main() -> None:
    """Checks one wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("tag", nargs="?", default="", help="how the name ends")
    parser.add_argument("--limit-bytes", type=int, default=sys.maxsize)
    arguments = parser.parse_args()
    data = check_parts(arguments.wheel, arguments.tag, arguments.limit_bytes)
    subprocess.run(
        [Path(sys.executable).with_name("abi3audit"), "--strict", arguments.wheel],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    library = lief.parse(data)
    if isinstance(library, lief.PE.Binary):
        print(check_windows(library))
    elif isinstance(library, lief.MachO.Binary):
        print(check_macos(library, arguments.wheel.stem.split("-")[-1], data))
    else:
        # Maturin has compared its symbols with the policy of its tag.
        print(f"{arguments.wheel.stat().st_size} bytes")


if __name__ == "__main__":
    main()
