"""How Sphinx makes the site of the Markdown pages in the tree; its source folder is the root of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/msdeform/msdeform"
HELP_TEXTS = ROOT / "crates/msdeform-cli/tests/snapshots"

project = "msdeform"
author = "The msdeform authors"
html_title = "msdeform"
html_theme = "furo"
extensions = ["myst_parser", "sphinx_external_toc"]
external_toc_path = "docs/site/toc.yml"
# Pages that the table of contents does not list are not read.
external_toc_exclude_missing = True
exclude_patterns = ["target", ".*"]
# Attributes choose the picture of a colour scheme.
myst_enable_extensions = ["attrs_inline"]
# Headings have anchors as on GitHub.
myst_heading_anchors = 5
html_static_path = ["static"]
html_css_files = ["style.css"]
# The first page is docs/start.html; index.html leads there.
html_extra_path = ["index.html"]
# Drawings are not Python.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
# Would be fetched page by page, which a browser refuses to pages that are files.
html_show_search_summary = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2563a8", "color-brand-content": "#2563a8"},
    "dark_css_variables": {"color-brand-primary": "#6fabee", "color-brand-content": "#6fabee"},
}

PICTURE = re.compile(
    r'<picture>.*?srcset="(?P<dark>.*?)".*?alt="(?P<alt>.*?)" src="(?P<light>.*?)".*?</picture>', re.DOTALL
)
RUST = re.compile(r"^```rust.*?^```", re.DOTALL | re.MULTILINE)


def as_sphinx_reads(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrites what GitHub and rustdoc understand and Sphinx does not."""
    text = source[0]
    # Links to the repository's own files become paths from its root.
    text = re.sub(rf'(\]\(|\]: |src="|srcset="){REPOSITORY}/(?:blob|tree|raw)/main/', r"\1/", text)
    # The theme shows one picture of two, by the scheme that the reader chose.
    text = PICTURE.sub(r"![\g<alt>](\g<light>){.only-light}![\g<alt>](\g<dark>){.only-dark}", text)
    # Rustdoc hides lines of examples, and reads words for the tests behind the language.
    text = RUST.sub(lambda block: re.sub(r"^#( .*)?\n", "", block[0], flags=re.MULTILINE), text)
    text = re.sub(r"^(```\w+),.*$", r"\1", text, flags=re.MULTILINE)
    source[0] = text.replace("<!-- help -->", help_texts()) if "<!-- help -->" in text else text


def help_texts() -> str:
    """Every help text under the name of its command, as the tests hold them."""
    texts = {
        file.stem.removeprefix("commands__help_"): file.read_text().split("---\n", 2)[2].strip()
        for file in HELP_TEXTS.glob("commands__help_*.snap")
    }
    main = texts["main"]
    names = re.findall(r"^  (\w+)", main.split("Commands:\n")[1].split("\n\n")[0], re.MULTILINE)
    sections = [("msdeform", main)] + [(f"msdeform {name}", texts[name]) for name in names if name != "help"]
    return "\n".join(f"### {title}\n\n```text\n{text}\n```\n" for title, text in sections)


class FilesOfTheRepository(SphinxTransform):
    """Makes links to files and folders that are not pages lead to the repository."""

    default_priority = 5

    def apply(self, **_: object) -> None:
        """Goes through the links of a page."""
        for link in [
            *self.document.findall(addnodes.download_reference),
            *self.document.findall(addnodes.pending_xref),
        ]:
            if link["refdomain"] == "doc":
                file = ROOT / f"{link['reftarget']}.md"
            else:
                file = Path(self.env.relfn2path(link["reftarget"].partition("#")[0])[1])
            readme = self.env.path2doc(file / "README.md")
            if readme in self.env.found_docs:
                link.attributes.update(refdomain="doc", reftarget=readme, reftargetid=None)
            elif file.exists() and self.env.path2doc(file) not in self.env.found_docs:
                kind = "tree" if file.is_dir() else "blob"
                uri = f"{REPOSITORY}/{kind}/main/{file.relative_to(ROOT)}"
                link.replace_self(nodes.reference("", "", *link.children, refuri=uri))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", as_sphinx_reads)
    app.add_transform(FilesOfTheRepository)
    # Its author does not say so, and Sphinx warns: it numbers sections, of which this site has none.
    app.extensions["sphinx_multitoc_numbering"].parallel_read_safe = True
