"""Makes the wheel `msdeform-kernels` of a kernel pack: one file of data for every system.

Usage: make_kernels_wheel.py PACK VERSION; the wheel lies in the folder of the pack.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

METADATA = """Metadata-Version: 2.1
Name: msdeform-kernels
Version: {version}
Summary: Compiled CUDA kernels of msdeform: common models start without a compiler
License: Apache-2.0 OR MIT
Requires-Python: >=3.10
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: msdeform\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
DOCSTRING = '"""Compiled kernels, which msdeform finds by itself."""\n'


def make(pack: Path, version: str) -> Path:
    """Writes the wheel; the same pack gives the same bytes."""
    info = f"msdeform_kernels-{version}.dist-info"
    files = {
        "msdeform_kernels/__init__.py": DOCSTRING.encode(),
        "msdeform_kernels/kernels.pack": pack.read_bytes(),
        f"{info}/METADATA": METADATA.format(version=version).encode(),
        f"{info}/WHEEL": WHEEL.encode(),
    }
    lines = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items()]
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    wheel = pack.with_name(f"msdeform_kernels-{version}-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            # No time of day; the pack is compressed already.
            archive.writestr(zipfile.ZipInfo(name), content)
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2])
