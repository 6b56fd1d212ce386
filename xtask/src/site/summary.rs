//! The order of the pages: docs/SUMMARY.md, sections with lists of links, a list below an entry for what is below it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::tree;

/// Where the order is written down.
pub const FILE: &str = "docs/SUMMARY.md";

/// Sections in their order.
#[derive(Debug, PartialEq, Eq)]
pub struct Summary {
    pub sections: Vec<Section>,
}

/// A heading of the navigation.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    pub title: String,
    pub entries: Vec<Entry>,
}

/// A page, and the pages below it.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// As the navigation calls it; a page of a folder is called as its own heading does.
    pub title: Option<String>,
    /// From the root of the tree.
    pub source: PathBuf,
    pub children: Vec<Self>,
}

impl Summary {
    /// Every page, in the order of reading.
    pub fn pages(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.sections.iter().flat_map(|section| &section.entries);
        entries.flat_map(|entry| std::iter::once(entry).chain(&entry.children))
    }

    /// The same with the pages of folders in the place of folders, among these files.
    pub fn with_folders(mut self, files: &[PathBuf]) -> Result<Self> {
        let named: Vec<PathBuf> = self.pages().map(|page| page.source.clone()).collect();
        for entry in self.sections.iter_mut().flat_map(|section| &mut section.entries) {
            let mut children = Vec::new();
            for child in entry.children.drain(..) {
                if is_page(&child.source) {
                    children.push(child);
                    continue;
                }
                let mut pages: Vec<&PathBuf> = files
                    .iter()
                    .filter(|file| file.parent() == Some(&child.source) && is_page(file))
                    .filter(|file| !named.contains(file))
                    .collect();
                ensure!(!pages.is_empty(), "{FILE}: no pages in {}", child.source.display());
                pages.sort();
                let page = |source: &PathBuf| Entry {
                    title: None,
                    source: source.clone(),
                    children: Vec::new(),
                };
                children.extend(pages.into_iter().map(page));
            }
            entry.children = children;
        }
        Ok(self)
    }
}

fn is_page(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "md")
}

/// Reads the order.
pub fn parse(text: &str) -> Result<Summary> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(Section { title: title.to_owned(), entries: Vec::new() });
        }
        let is_child = line.starts_with("  - ");
        let Some(item) = line.trim_start().strip_prefix("- ") else { continue };
        let link = item.strip_prefix('[').and_then(|rest| rest.strip_suffix(')'));
        let (title, target) = link
            .and_then(|rest| rest.split_once("]("))
            .with_context(|| format!("{FILE}: `{line}` is no link"))?;
        let folder = Path::new(FILE).parent().unwrap_or(Path::new(""));
        let entry = Entry {
            title: Some(title.to_owned()),
            source: tree::normalise(&folder.join(target)),
            children: Vec::new(),
        };
        let section =
            sections.last_mut().with_context(|| format!("{FILE}: `{line}` before any section"))?;
        match section.entries.last_mut() {
            Some(parent) if is_child => parent.children.push(entry),
            _ if is_child => anyhow::bail!("{FILE}: `{line}` is below nothing"),
            _ => section.entries.push(entry),
        }
    }
    ensure!(sections.iter().any(|section| !section.entries.is_empty()), "{FILE} lists no page");
    Ok(Summary { sections })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_order_and_a_folder_stands_for_those_that_are_not_named() {
        let text = "# x\n\nwords\n\n## A\n\n- [Up](../README.md)\n- [Ladder](LADDER.md)\n  - [all](kernels)\n## B\n- [b](b.md)\n";
        let files: Vec<PathBuf> =
            ["docs/kernels/z.md", "docs/kernels/a.md", "docs/kernels/a.svg", "docs/other.md"]
                .map(PathBuf::from)
                .into();
        let summary = parse(text).unwrap().with_folders(&files).unwrap();
        let pages: Vec<String> =
            summary.pages().map(|page| page.source.display().to_string()).collect();
        assert_eq!(
            pages,
            ["README.md", "docs/LADDER.md", "docs/kernels/a.md", "docs/kernels/z.md", "docs/b.md"]
        );
        assert_eq!(summary.sections[0].title, "A");
        assert_eq!(summary.sections[0].entries[1].children[0].title, None);
    }

    #[test]
    fn what_is_no_link_or_stands_nowhere_is_refused() {
        for wrong in ["", "## A\n", "- [a](a.md)\n", "## A\n- a\n", "## A\n  - [a](a.md)\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let empty = parse("## A\n- [a](a.md)\n  - [none](none)\n").unwrap();
        assert!(empty.with_folders(&[]).is_err());
    }
}
