//! Every registered GPU variant has its page in `docs/kernels`, and no page outlives its variant.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use msdeform::DeviceKind;

use crate::steps::Report;
use crate::tree;

/// Goes through the registry and looks for the pages.
pub fn check() -> Result<Report> {
    let registered: BTreeSet<String> = msdeform_bench::device::registry()
        .into_iter()
        .filter(|variant| variant.device == DeviceKind::Cuda)
        .map(|variant| variant.id.to_owned())
        .collect();
    let pages = pages()?;
    let missing: Vec<_> = registered.difference(&pages).cloned().collect();
    ensure!(missing.is_empty(), "no page in docs/kernels for {}", missing.join(", "));
    let orphans: Vec<_> = pages.difference(&registered).cloned().collect();
    ensure!(orphans.is_empty(), "docs/kernels has pages of no variant: {}", orphans.join(", "));
    Ok(Report::check(format!("{} GPU variants", registered.len())))
}

fn pages() -> Result<BTreeSet<String>> {
    let kernels = std::path::Path::new("docs/kernels");
    let files = tree::files()?.into_iter().filter(|file| file.parent() == Some(kernels));
    let names =
        files.filter_map(|file| Some(file.file_name()?.to_str()?.strip_suffix(".md")?.to_owned()));
    // The folder's own page and the CPU backend's are no variants.
    Ok(names.filter(|name| !["README", "cpu"].contains(&name.as_str())).collect())
}
