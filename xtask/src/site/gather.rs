//! Pages of the tree as Sphinx takes them: under short names, with links that lead to the site where it has what they name, and to the
//! repository elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::summary::{Entry, Summary};
use crate::tree;

/// What is not on the site is there.
const REPOSITORY: &str = "https://github.com/msdeform/msdeform";
/// Where the reference of the command line comes in: the help texts, as the tests hold them.
const HELP: &str = "<!-- help -->";
const HELP_TEXTS: &str = "crates/msdeform-cli/tests/snapshots";

/// Pages by their place in the tree, with their places on the site.
struct Pages(BTreeMap<PathBuf, PathBuf>);

/// Writes all pages below a folder for Sphinx, and pictures to where the site will have them: pages name those in HTML, which Sphinx
/// does not look into. Returns the number of pages.
pub fn write(summary: &Summary, folder: &Path, site: &Path) -> Result<usize> {
    let mut places = BTreeMap::new();
    for (number, Entry { source, .. }) in summary.pages().enumerate() {
        let place = if number == 0 { PathBuf::from("index.md") } else { place_of(source) };
        let twice = places.iter().find(|(other, taken)| **taken == place && *other != source);
        ensure!(twice.is_none(), "two pages would be {}", place.display());
        ensure!(
            places.insert(source.clone(), place).is_none(),
            "{} is listed twice",
            source.display()
        );
    }
    let pages = Pages(places);
    for (source, place) in &pages.0 {
        let text = std::fs::read_to_string(tree::root().join(source))
            .with_context(|| source.display().to_string())?;
        let mut page = pages.rewrite(source, &text, &|path| tree::root().join(path).exists())?;
        if page.text.contains(HELP) {
            page.text = page.text.replace(HELP, &help_texts()?);
        }
        page.text.push_str(&navigation(summary, &pages, source));
        put(&folder.join(place), page.text.as_bytes())?;
        for picture in page.pictures {
            let bytes = std::fs::read(tree::root().join(&picture))?;
            put(&site.join("media").join(&picture), &bytes)?;
        }
    }
    Ok(pages.0.len())
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(parent)
        .and_then(|()| std::fs::write(path, bytes))
        .with_context(|| path.display().to_string())
}

/// `docs/run.md` is `run.md`, `bindings/python/docs/calling.md` is `python/calling.md`, a README is its folder's index.
fn place_of(source: &Path) -> PathBuf {
    let (python, docs) = (Path::new("bindings/python"), Path::new("docs"));
    let short = source.strip_prefix(docs).unwrap_or(source);
    let short = match short.strip_prefix(python) {
        Ok(rest) => Path::new("python").join(rest.strip_prefix(docs).unwrap_or(rest)),
        Err(_) => short.to_path_buf(),
    };
    let name = short.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_index = name == "readme.md" && short.components().count() > 1;
    short.with_file_name(if is_index { "index.md".to_owned() } else { name })
}

/// A page as it goes to Sphinx, and the pictures that it shows.
struct Page {
    text: String,
    pictures: Vec<PathBuf>,
}

impl Pages {
    fn rewrite(&self, source: &Path, text: &str, exists: &dyn Fn(&Path) -> bool) -> Result<Page> {
        let mut page = Page { text: String::new(), pictures: Vec::new() };
        let mut fence = None;
        let mut picture: Option<String> = None;
        for (index, line) in text.lines().enumerate() {
            let at = || format!("{}:{}", source.display(), index + 1);
            if line.trim_start().starts_with("```") {
                fence = match fence {
                    None => Some(line.trim_start().trim_start_matches('`').to_owned()),
                    Some(_) => None,
                };
                // What follows a comma is for the tests.
                let shown = line.split(',').next().unwrap_or(line);
                page.text += if fence.is_some() { shown } else { line };
                page.text.push('\n');
                continue;
            }
            if let Some(language) = &fence {
                let hidden =
                    language.starts_with("rust") && (line == "#" || line.starts_with("# "));
                if !hidden {
                    page.text = page.text + line + "\n";
                }
                continue;
            }
            if line.trim() == "<picture>" {
                picture = Some(String::new());
            }
            if let Some(lines) = &mut picture {
                lines.push_str(line);
                if line.trim() == "</picture>" {
                    let html = self.picture(source, lines, &mut page.pictures).with_context(at)?;
                    page.text = page.text + &html + "\n";
                    picture = None;
                }
                continue;
            }
            page.text += &self.line(source, line, exists).with_context(at)?;
            page.text.push('\n');
        }
        ensure!(
            picture.is_none() && fence.is_none(),
            "{}: a picture or a fence has no end",
            source.display()
        );
        Ok(page)
    }

    /// A line of prose with its links rewritten; inline code, every other piece, is left alone.
    fn line(&self, source: &Path, line: &str, exists: &dyn Fn(&Path) -> bool) -> Result<String> {
        if let Some((name, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "))
        {
            return Ok(format!("[{name}]: {}", self.target(source, target, exists)?));
        }
        let mut out = String::new();
        for (number, piece) in line.split('`').enumerate() {
            if number > 0 {
                out.push('`');
            }
            if number % 2 == 1 {
                out.push_str(piece);
                continue;
            }
            let mut parts = piece.split("](");
            out.push_str(parts.next().unwrap_or_default());
            for part in parts {
                let (target, rest) = part.split_once(')').context("a link has no end")?;
                let _ = write!(out, "]({}){rest}", self.target(source, target, exists)?);
            }
        }
        Ok(out)
    }

    /// Where a link of a page leads from its place on the site.
    fn target(
        &self,
        source: &Path,
        target: &str,
        exists: &dyn Fn(&Path) -> bool,
    ) -> Result<String> {
        let here = ["blob", "tree", "raw"]
            .iter()
            .find_map(|kind| target.strip_prefix(&format!("{REPOSITORY}/{kind}/main/")));
        if here.is_none()
            && (target.contains("://") || target.starts_with("mailto:") || target.starts_with('#'))
        {
            return Ok(target.to_owned());
        }
        let (path, anchor) =
            here.unwrap_or(target).split_once('#').unwrap_or((here.unwrap_or(target), ""));
        let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
        let path = match here {
            Some(_) => PathBuf::from(path),
            None => tree::normalise(&source.parent().unwrap_or(Path::new("")).join(path)),
        };
        let found = self.0.get(&path).or_else(|| self.0.get(&path.join("README.md")));
        if let (Some(to), Some(from)) = (found, self.0.get(source)) {
            return Ok(relative(from, to) + &anchor);
        }
        ensure!(exists(&path), "the link `{target}` leads nowhere");
        let kind = if tree::root().join(&path).is_dir() { "tree" } else { "blob" };
        Ok(format!("{REPOSITORY}/{kind}/main/{}{anchor}", path.display()))
    }

    /// A picture for light pages and one for dark ones, shown by the scheme that the reader chose on the site, which
    /// `prefers-color-scheme` does not know.
    fn picture(&self, source: &Path, html: &str, pictures: &mut Vec<PathBuf>) -> Result<String> {
        let attribute = |name: &str| {
            html.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split_once('"'))
        };
        let alt = attribute("alt").map_or("", |(alt, _)| alt);
        let mut out = String::from("<p>");
        for (name, class) in [(" src", "only-light"), ("srcset", "only-dark")] {
            let (file, _) = attribute(name).with_context(|| format!("a picture without{name}"))?;
            let file = match file.strip_prefix(&format!("{REPOSITORY}/raw/main/")) {
                Some(path) => PathBuf::from(path),
                None => tree::normalise(&source.parent().unwrap_or(Path::new("")).join(file)),
            };
            let Some(from) = self.0.get(source) else { bail!("{} is no page", source.display()) };
            let place = relative(from, &Path::new("media").join(&file));
            let _ = write!(out, "<img class=\"{class}\" alt=\"{alt}\" src=\"{place}\">");
            pictures.push(file);
        }
        Ok(out + "</p>")
    }
}

/// A path from one page to another.
fn relative(from: &Path, to: &Path) -> String {
    let up = "../".repeat(from.components().count() - 1);
    format!("{up}{}", to.display())
}

/// What the navigation beside the pages is made of: sections on the first page, on others what is below them.
fn navigation(summary: &Summary, pages: &Pages, source: &Path) -> String {
    let mut out = String::new();
    let list = |out: &mut String, caption: &str, entries: &[Entry]| {
        let _ = write!(out, "\n```{{toctree}}\n:hidden:\n{caption}\n");
        for Entry { title, source, .. } in entries {
            let Some(place) = pages.0.get(source) else { continue };
            let place = place.with_extension("").display().to_string();
            let _ = match title {
                Some(title) => writeln!(out, "{title} </{place}>"),
                None => writeln!(out, "/{place}"),
            };
        }
        out.push_str("```\n");
    };
    let is_first = pages.0.get(source).is_some_and(|place| place == Path::new("index.md"));
    if is_first {
        for section in &summary.sections {
            // A page does not list itself.
            let entries = &section.entries
                [usize::from(section.entries.first().is_some_and(|e| e.source == source))..];
            list(&mut out, &format!(":caption: {}\n", section.title), entries);
        }
    }
    let below = summary.pages().find(|entry| entry.source == source && !entry.children.is_empty());
    if let Some(entry) = below {
        list(&mut out, "", &entry.children);
    }
    out
}

/// Every help text under the name of its command, in the order of the commands.
fn help_texts() -> Result<String> {
    let read = |name: &str| -> Result<String> {
        let path = tree::root().join(HELP_TEXTS).join(format!("commands__help_{name}.snap"));
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.splitn(3, "---\n").last().unwrap_or_default().trim().to_owned())
    };
    let main = read("main")?;
    let listed = main
        .split_once("Commands:\n")
        .and_then(|(_, rest)| rest.split_once("\n\n"))
        .context("no commands in the help")?;
    let mut out = format!("### msdeform\n\n```text\n{main}\n```\n");
    for name in listed
        .0
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
    {
        let _ = write!(out, "\n### msdeform {name}\n\n```text\n{}\n```\n", read(name)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        let sources = [
            "docs/start.md",
            "README.md",
            "docs/LADDER.md",
            "docs/kernels/a.md",
            "bindings/python/README.md",
        ];
        let place = |source: &str| (PathBuf::from(source), place_of(Path::new(source)));
        let mut places: BTreeMap<_, _> = sources.map(place).into();
        places.insert("docs/start.md".into(), "index.md".into());
        Pages(places)
    }

    #[test]
    fn places_are_short() {
        for (source, place) in [
            ("docs/LADDER.md", "ladder.md"),
            ("docs/adr/README.md", "adr/index.md"),
            ("bindings/python/docs/calling.md", "python/calling.md"),
            ("bindings/python/README.md", "python/index.md"),
            ("README.md", "readme.md"),
        ] {
            assert_eq!(place_of(Path::new(source)), Path::new(place));
        }
    }

    #[test]
    fn links_lead_to_the_site_or_to_the_repository_and_code_is_left_alone() {
        let exists = |path: &Path| path == Path::new("crates/x.rs");
        let rewrite = |source: &str, text: &str| {
            pages().rewrite(Path::new(source), text, &exists).map(|page| page.text)
        };
        let text = "[a](LADDER.md#the-top) `[b](no.md)` [`c`](../crates/x.rs) [d](#here) [e](https://example.org/x.md)\n\
                    ```sh\n[f](no.md)\n```\n[g]: ../README.md\n";
        let expected = format!(
            "[a](../ladder.md#the-top) `[b](no.md)` [`c`]({REPOSITORY}/blob/main/crates/x.rs) [d](#here) \
             [e](https://example.org/x.md)\n```sh\n[f](no.md)\n```\n[g]: ../readme.md\n"
        );
        let text = text
            .replace("](LADDER", "](../LADDER")
            .replace("../crates", "../../crates")
            .replace("../README", "../../README");
        assert_eq!(rewrite("docs/kernels/a.md", &text).unwrap(), expected);
        let absolute = format!("[x]({REPOSITORY}/blob/main/docs/LADDER.md)\n");
        assert_eq!(rewrite("bindings/python/README.md", &absolute).unwrap(), "[x](../ladder.md)\n");
        let error = format!("{:#}", rewrite("docs/LADDER.md", "fine\n[x](gone.md)\n").unwrap_err());
        assert!(error.contains("docs/LADDER.md:2") && error.contains("gone.md"), "{error}");
    }

    #[test]
    fn pictures_follow_the_scheme_of_the_site_and_hidden_lines_of_rust_are_hidden() {
        let text = "<picture>\n  <source media=\"(x)\" srcset=\"../d.svg\">\n  <img alt=\"A\" src=\"../l.svg\" width=\"9\">\n</picture>\n\
                    ```rust,no_run\n# hidden\nshown();\n```\n```sh\n# shown\n```\n";
        let page = pages().rewrite(Path::new("docs/kernels/a.md"), text, &|_| true).unwrap();
        assert_eq!(page.pictures, [PathBuf::from("docs/l.svg"), PathBuf::from("docs/d.svg")]);
        let expected = "<p><img class=\"only-light\" alt=\"A\" src=\"../media/docs/l.svg\"><img class=\"only-dark\" alt=\"A\" \
                        src=\"../media/docs/d.svg\"></p>\n```rust\nshown();\n```\n```sh\n# shown\n```\n";
        assert_eq!(page.text, expected);
    }
}
