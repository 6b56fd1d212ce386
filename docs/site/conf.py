"""How Sphinx shows the pages that `cargo xtask docs` gathers."""

project = "msdeform"
author = "The msdeform authors"
html_title = "msdeform"
html_theme = "furo"
extensions = ["myst_parser"]
# Headings have anchors as on GitHub.
myst_heading_anchors = 5
html_static_path = ["static"]
html_css_files = ["style.css"]
# Drawings are not Python.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_show_sourcelink = False
html_copy_source = False
# Would be fetched page by page, which a browser refuses to pages that are files.
html_show_search_summary = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2563a8", "color-brand-content": "#2563a8"},
    "dark_css_variables": {"color-brand-primary": "#6fabee", "color-brand-content": "#6fabee"},
}
