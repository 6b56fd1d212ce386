//! Every registered GPU variant has its page in `docs/kernels`, no page outlives its variant, and the page of a rung has
//! all that a rung owes its reader.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use msdeform::VariantSpec;
use msdeform_cuda_lab::REGISTRY;

use crate::steps::Report;
use crate::tree;

/// What the page of a rung has: the idea with its owners and a picture, a prediction, the record's tables, when it
/// loses, and what the document said.
const PARTS: [&str; 8] = [
    "\n## Idea\n",
    "| who |",
    "\n```",
    "\n## Predicted\n",
    "\n## Measured\n",
    "<!-- measured:begin -->",
    "\n## When it loses\n",
    "\n## What the seed document says\n",
];

/// Goes through the registry and looks for the pages.
pub fn check() -> Result<Report> {
    let variants: Vec<&VariantSpec> = REGISTRY.iter().map(|variant| variant.spec()).collect();
    let registered: BTreeSet<String> =
        variants.iter().map(|variant| variant.id.to_owned()).collect();
    let pages = pages()?;
    let missing: Vec<_> = registered.difference(&pages).cloned().collect();
    ensure!(missing.is_empty(), "no page in docs/kernels for {}", missing.join(", "));
    let orphans: Vec<_> = pages.difference(&registered).cloned().collect();
    ensure!(orphans.is_empty(), "docs/kernels has pages of no variant: {}", orphans.join(", "));
    let mut rungs = 0;
    for rung in variants.iter().filter(|variant| variant.rung) {
        let path = tree::root().join(format!("docs/kernels/{}.md", rung.id));
        let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let lacking: Vec<_> = missing_parts(&page).map(str::trim).collect();
        ensure!(lacking.is_empty(), "docs/kernels/{}.md lacks {}", rung.id, lacking.join(", "));
        rungs += 1;
    }
    Ok(Report::check(format!("{} GPU variants, {rungs} of them rungs", registered.len())))
}

fn missing_parts(page: &str) -> impl Iterator<Item = &'static str> {
    PARTS.into_iter().filter(move |part| !page.contains(part))
}

fn pages() -> Result<BTreeSet<String>> {
    let kernels = std::path::Path::new("docs/kernels");
    let files = tree::files()?.into_iter().filter(|file| file.parent() == Some(kernels));
    let names =
        files.filter_map(|file| Some(file.file_name()?.to_str()?.strip_suffix(".md")?.to_owned()));
    // The folder's own page and the CPU backend's are no variants.
    Ok(names.filter(|name| !["README", "cpu"].contains(&name.as_str())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_a_part_is_found() {
        let page = PARTS.concat();
        assert_eq!(missing_parts(&page).count(), 0);
        for part in PARTS {
            let without = page.replacen(part, "", 1);
            assert_eq!(missing_parts(&without).collect::<Vec<_>>(), [part]);
        }
    }
}
