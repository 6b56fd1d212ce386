"""Makes the library of a wheel loadable in processes without Python: python_optional.py WHEEL LEVEL

A module of Python's has undefined symbols of the interpreter, and those of data are bound when it is loaded: without an
interpreter that fails. As weak ones they are bound where there is one, and are null where there is none; nothing that
a program without Python calls reads them.
"""

import base64
import csv
import hashlib
import io
import struct
import sys
import zipfile

LIBRARY, RECORD = "msdeform/_native.abi3.so", ".dist-info/RECORD"
DYNAMIC_SYMBOLS, GLOBAL, WEAK = 11, 1, 2


def weakened(library: bytes) -> bytes:
    """The same with weak symbols of the interpreter."""
    data = bytearray(library)
    assert data[:6] == b"\x7fELF\x02\x01", "expected a little-endian library of 64 bits"
    (headers_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, headers_at + at * size) for at in range(count)]
    changed = 0
    for _, kind, _, _, begin, length, names_of, _, _, entry in sections:
        if kind != DYNAMIC_SYMBOLS:
            continue
        names = sections[names_of][4]
        for symbol in range(begin, begin + length, entry):
            name, info, _, section = struct.unpack_from("<IBBH", data, symbol)
            is_python = data[names + name : names + name + 3] == b"_Py" or data[names + name : names + name + 2] == b"Py"
            if section == 0 and info >> 4 == GLOBAL and is_python:
                data[symbol + 4] = WEAK << 4 | info & 15
                changed += 1
    assert changed > 0, "it has no symbols of Python"
    return bytes(data)


def main(wheel: str, level: int) -> None:
    with zipfile.ZipFile(wheel) as before:
        files = [(info, before.read(info)) for info in before.infolist()]
    digest = {}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as after:
        for info, data in files:
            if info.filename == LIBRARY:
                data = weakened(data)
                text = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                digest[LIBRARY] = [f"sha256={text}", str(len(data))]
            if info.filename.endswith(RECORD):
                assert digest, "the record comes before what it records"
                rows = [[row[0], *digest.get(row[0], row[1:])] for row in csv.reader(io.StringIO(data.decode()))]
                written = io.StringIO()
                csv.writer(written, lineterminator="\n").writerows(rows)
                data = written.getvalue().encode()
            after.writestr(info, data, compresslevel=level)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
