"""Words that make readers stumble: find_words.py FILE... names each of them, and what to write instead.

It reads Markdown without code and generated tables, the `//!` headers and errors of Rust, the docstrings of Python
modules and what Python raises. A line that needs one of the words ends in a comment with the reason, such as
`words: quotes PyTorch`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

INSTEAD = {
    r"whoever|nobody|anybody|of whom": "name the actor: the caller, the plan, no test, any user",
    r"whatever": "say for which cases: for any launch geometry, regardless of dtype",
    r"beside": "next to, in addition to, compared with",
    r"is none|is no other one": "say what there is instead",
    r"in words": "say who reads it: the message, the text",
    r"the same bits": "bitwise reproducible, bitwise identical",
    r"mended": "fixed",
    r"processors?": "CPU",
    r"what a call gets|samples that follow|given samples": "the kernel of a call, fused operator, plain operator",
}
WORDS = re.compile(r"\b(?:" + "|".join(f"({words})" for words in INSTEAD) + r")\b", re.IGNORECASE)
EXCEPTION = re.compile(r"words: \w")
CODE = re.compile(r"`[^`]*`|<!--.*?-->")
# In a Rust file: macros and functions that take the text of an error.
ERROR = re.compile(r"#\[error\(|\b(?:bail!|ensure!|anyhow!|context|with_context|expect)\(")
TOKEN = re.compile(r"//[^\n]*|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\\n]|\\.)'|[()]", re.DOTALL)

Lines = Iterator[tuple[int, str]]


def markdown(text: str) -> Lines:
    """Paragraphs; of a changelog what is unreleased."""
    released = re.search(r"^## \[\d", text, re.MULTILINE) if text.startswith("# Changelog") else None
    is_code = is_table = False
    for number, line in enumerate(text[: released.start() if released else None].splitlines(), 1):
        fence = line.lstrip().startswith("```")
        is_code ^= fence
        is_table = (is_table or ":begin -->" in line) and ":end -->" not in line
        if not (is_code or is_table or fence):
            yield number, line


def rust(text: str) -> Lines:
    """Headers, and the strings between the parentheses of an error."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//!"):
            yield number, line
    for error in ERROR.finditer(text):
        depth = 1
        for token in TOKEN.finditer(text, error.end()):
            depth += {"(": 1, ")": -1}.get(token.group(), 0)
            if depth == 0:
                break
            if token.group().startswith('"'):
                yield from spread(text.count("\n", 0, token.start()) + 1, token.group())


def python(text: str) -> Lines:
    """The docstring of the module, and the strings of `raise`."""
    module = ast.parse(text)
    raised = [part for node in ast.walk(module) if isinstance(node, ast.Raise) for part in ast.walk(node)]
    if ast.get_docstring(module):
        raised.append(module.body[0].value)
    for part in raised:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from spread(part.lineno, part.value)


def spread(first: int, text: str) -> Lines:
    """The lines of a string that starts at a line."""
    yield from enumerate(text.splitlines(), first)


READERS = {".md": markdown, ".rs": rust, ".py": python}


def findings(name: str, text: str) -> list[str]:
    """The words in a file, with what to write instead."""
    lines, advice, found = text.splitlines(), list(INSTEAD.values()), set()
    for number, line in READERS[Path(name).suffix](text):
        if not EXCEPTION.search(lines[number - 1]):
            for word in WORDS.finditer(CODE.sub("", line)):
                found.add((number, f"{name}:{number}: `{word.group()}`: {advice[word.lastindex - 1]}"))
    return [message for _, message in sorted(found)]


def main(names: list[str]) -> None:
    """Prints the words that were found, or how many files were read."""
    found = [finding for name in names for finding in findings(name, Path(name).read_text())]
    if found:
        sys.exit("\n".join(found))
    print(f"{len(names)} files")


if __name__ == "__main__":
    main(sys.argv[1:])
