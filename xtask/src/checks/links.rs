//! Every local link of every Markdown file leads somewhere.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::steps::Report;
use crate::tree;

/// Checks the Markdown files of the repository.
pub fn check() -> Result<Report> {
    let mut pages = HashMap::new();
    for file in tree::files()? {
        if file.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(tree::root().join(&file))?;
            pages.insert(file, text);
        }
    }
    let exists = |path: &Path| tree::root().join(path).exists();
    let (links, broken) = broken_links(&pages, exists);
    ensure!(broken.is_empty(), "broken links:\n  {}", broken.join("\n  "));
    Ok(Report::check(format!("{links} local links in {} pages", pages.len())))
}

/// The number of local links, and a line for each that leads nowhere.
fn broken_links(
    pages: &HashMap<PathBuf, String>,
    exists: impl Fn(&Path) -> bool,
) -> (usize, Vec<String>) {
    let (mut count, mut broken) = (0, Vec::new());
    for (page, text) in pages {
        for (line, target) in local_links(text) {
            count += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() {
                page.clone()
            } else {
                tree::normalise(&page.parent().unwrap_or(Path::new("")).join(path))
            };
            let known = pages.get(&path);
            let leads_somewhere = match known {
                Some(text) => anchor.is_empty() || anchors(text).any(|found| found == anchor),
                None => exists(&path),
            };
            if !leads_somewhere {
                broken.push(format!("{}:{line}: {target}", page.display()));
            }
        }
    }
    broken.sort();
    (count, broken)
}

/// Lines outside of fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fence && !fenced).then_some((index + 1, line))
    })
}

/// Targets of `[text](target)` that are not on the web, with their lines.
fn local_links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        // Odd pieces are inline code.
        let pieces = line.split('`').step_by(2);
        let targets = pieces.flat_map(|piece| piece.split("](").skip(1));
        targets
            .filter_map(|rest| rest.split_once(')'))
            .map(|(target, _)| target.split_whitespace().next().unwrap_or_default())
            .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
            .map(move |target| (number, target))
    })
}

/// The anchors of a page's headings, formed as GitHub does.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_missing_files_and_headings_are_found_and_code_is_left_alone() {
        let readme = "# Top\n\
            [good](docs/a.md) [good](docs/a.md#the-bank-rule) [good](#top) [dir](docs)\n\
            [web](https://example.org/x.md) `[code](nowhere.md)` ![image](docs/plot.svg \"title\")\n\
            ```text\n[code](nowhere.md)\n```\n\
            [gone](docs/b.md)\n[no heading](docs/a.md#other)\n";
        let page = "## The bank rule\n[up](../README.md) [out](../../x.md)\n";
        let pages = HashMap::from([
            (PathBuf::from("README.md"), readme.to_owned()),
            (PathBuf::from("docs/a.md"), page.to_owned()),
        ]);
        let exists = |path: &Path| ["docs", "docs/plot.svg"].iter().any(|p| path == Path::new(p));
        let (count, broken) = broken_links(&pages, exists);
        assert_eq!(count, 9);
        assert_eq!(
            broken,
            ["README.md:7: docs/b.md", "README.md:8: docs/a.md#other", "docs/a.md:2: ../../x.md"]
        );
    }
}
