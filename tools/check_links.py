"""Every local link of Markdown files leads to a file, and to a heading if it names one: check_links.py FILE..."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

PARSER = MarkdownIt("commonmark").use(anchors_plugin, max_level=6)


@cache
def tokens(page: Path) -> list[Token]:
    """A page, parsed; headings have the anchors of GitHub."""
    return PARSER.parse(page.read_text())


def targets(page: Path) -> list[tuple[int, str]]:
    """Where links and pictures of a page lead, with the first line of their paragraph."""
    inline = [token for token in tokens(page) if token.type == "inline"]
    found = [
        (token.map[0] + 1, part.attrGet("href") or part.attrGet("src")) for token in inline for part in token.children
    ]
    return [
        (line, target) for line, target in found if target and "://" not in target and not target.startswith("mailto:")
    ]


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a file exists and, if it is a page, has the heading."""
    path, _, anchor = target.partition("#")
    file = Path(os.path.normpath(page.parent / path)) if path else page
    if file.suffix != ".md" or not anchor:
        return file.exists()
    return file.is_file() and any(token.attrGet("id") == anchor for token in tokens(file))


def main(pages: list[Path]) -> None:
    """Prints dead links, or how many there are."""
    links = [(page, line, target) for page in pages for line, target in targets(page)]
    broken = [f"{page}:{line}: {target}" for page, line, target in links if not leads_somewhere(page, target)]
    if broken:
        sys.exit("\n".join(["broken links:", *broken]))
    print(f"{len(links)} local links in {len(pages)} pages")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
