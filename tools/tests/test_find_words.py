"""The words are found in the texts that people read, and nowhere else."""

from find_words import findings

RUST = """//! Nobody reads this.
// nobody
const TEXT: &str = "nobody";
#[error("{path} is beside {0}",
        place(")"))]
fn f() {
    ensure!(is_fine(a), "two lines, \\
             whatever they are"); // a comment
    let other = "nobody";
    bail!("a processor"); // words: quotes PyTorch
}
"""
MARKDOWN = """Whoever `nobody` reads
```
nobody
```
<!-- records:cpu:begin -->
nobody
<!-- records:cpu:end -->
A processor <!-- words: of images, in transformers -->
the last processors
"""
PYTHON = '''"""A module.

It is mended.
"""
def f():
    """nobody"""
    raise ValueError(
        "fine",
        f"{x} of whom",
    )
'''


def lines(name: str, text: str) -> list[int]:
    return [int(finding.split(":")[1]) for finding in findings(name, text)]


def test_words_are_found_with_what_to_write_instead():
    assert lines("a.rs", RUST) == [1, 4, 8]
    assert lines("a.md", MARKDOWN) == [1, 9]
    assert lines("a.py", PYTHON) == [3, 9]
    assert findings("a.md", "many processors") == ["a.md:1: `processors`: CPU"]


def test_an_exception_needs_a_reason():
    assert not findings("a.md", "a processor <!-- words: of images -->")
    assert findings("a.md", "a processor <!-- words: -->")


def test_released_parts_of_a_changelog_stay_as_they_are():
    changelog = "# Changelog\n## [Unreleased]\n- whatever\n## [0.1.0] - 2026-01-01\n- nobody\n"
    assert lines("CHANGELOG.md", changelog) == [3]
