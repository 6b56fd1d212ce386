"""Makes the library of a wheel loadable in processes without Python: python_optional.py WHEEL LEVEL

A Python module has undefined symbols of the interpreter, and those of data are bound when the module is loaded: without
an interpreter that fails. Weak symbols are bound if there is an interpreter and are null otherwise; nothing that a
program without Python calls reads them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from auditwheel.wheeltools import InWheelCtx
from elftools.elf.elffile import ELFFile

LIBRARY = "msdeform/_native.abi3.so"
# Of an `Elf64_Sym`: where binding and type are, and the binding that symbols get.
INFO, WEAK = 4, 2


def weaken(library: Path) -> None:
    """Gives the interpreter's symbols another binding, in place."""
    with library.open("r+b") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        symbols = list(enumerate(table.iter_symbols()))
        wanted = [
            (index, symbol)
            for index, symbol in symbols
            if symbol.name.startswith(("Py", "_Py"))
            and symbol["st_shndx"] == "SHN_UNDEF"
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
        ]
        assert wanted, "it has no symbols of Python"
        for index, _ in wanted:
            file.seek(table["sh_offset"] + index * table["sh_entsize"] + INFO)
            kind = file.read(1)[0] & 15
            file.seek(-1, 1)
            file.write(bytes([WEAK << 4 | kind]))


if __name__ == "__main__":
    wheel = Path(sys.argv[1]).absolute()
    # As maturin writes it: the same files give the same wheel, whenever it is made.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
    with InWheelCtx(wheel, wheel) as context:
        context.zip_compression_level = int(sys.argv[2])
        weaken(context.path / LIBRARY)
