"""A kernel reads like a page: check_kernel_text.py FILE... finds lines and functions that are too long.

Lines of every file; functions of the kernels only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lizard

# As in `.clang-format`, which leaves comments alone.
MAX_COLUMNS = 110
MAX_LINES = 50


def functions(file: Path) -> list[tuple[int, str]]:
    """The length of every function, with its name."""
    # Lizard tells languages by the end of a name.
    listed = lizard.analyze_file.analyze_source_code(f"{file}.cpp", file.read_text()).function_list
    return [(function.length, function.name) for function in listed]


def main(files: list[Path]) -> None:
    """Prints what is too long, or how many functions there are."""
    too_long, lengths = [], []
    for file in files:
        lines = enumerate(file.read_text().splitlines(), 1)
        too_long += [f"{file}:{number}: {len(line)} columns" for number, line in lines if len(line) > MAX_COLUMNS]
        if "kernels" in file.parts:
            measured = functions(file)
            lengths += [length for length, _ in measured]
            too_long += [f"{file}: {length} lines of `{name}`" for length, name in measured if length > MAX_LINES]
    if too_long:
        sys.exit("\n".join(["too long:", *too_long]))
    assert lengths, "no function was found"
    print(f"{len(lengths)} functions of at most {max(lengths)} lines")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
