//! Every registered GPU variant has its page in `docs/kernels`, and no page outlives its variant.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{capture, cargo};
use crate::steps::Report;
use crate::tree;

/// Asks the command line for the registry and looks for the pages.
pub fn check() -> Result<Report> {
    let listed = capture(&mut cargo([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "msdeform-cli",
        "--",
        "variants",
        "--json",
    ]))?;
    let registered = gpu_variants(&listed)?;
    let pages = pages()?;
    let missing: Vec<_> = registered.difference(&pages).cloned().collect();
    ensure!(missing.is_empty(), "no page in docs/kernels for {}", missing.join(", "));
    let orphans: Vec<_> = pages.difference(&registered).cloned().collect();
    ensure!(orphans.is_empty(), "docs/kernels has pages of no variant: {}", orphans.join(", "));
    Ok(Report::check(format!("{} GPU variants", registered.len())))
}

fn gpu_variants(json: &str) -> Result<BTreeSet<String>> {
    let list: Vec<Value> = serde_json::from_str(json).context("`variants --json` is no list")?;
    let on_gpu = list.iter().filter(|variant| variant["device"] == "cuda");
    on_gpu
        .map(|variant| variant["id"].as_str().map(str::to_owned).context("a variant without an id"))
        .collect()
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
    fn only_gpu_variants_need_a_page() {
        let json = r#"[{"id": "fwd_a", "device": "cuda"}, {"id": "fwd_b", "device": "cpu"}]"#;
        assert_eq!(gpu_variants(json).unwrap(), BTreeSet::from(["fwd_a".to_owned()]));
        assert!(gpu_variants("{}").is_err());
        assert!(gpu_variants(r#"[{"device": "cuda"}]"#).is_err());
    }
}
