//! Every GPU variant has its page in `docs/kernels`, and no page outlives its variant.

#![allow(clippy::unwrap_used, reason = "tests may fail, and helpers of tests too")]

use std::collections::BTreeSet;
use std::path::Path;

use msdeform_cuda_lab::REGISTRY;

/// Parts of a rung's page: the idea with its owners and a picture, a prediction, the record's tables, when the
/// rung loses, and what the seed document said.
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

#[test]
fn every_variant_has_a_complete_page() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let names = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    let mut pages: BTreeSet<_> =
        names.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    // The folder's own page and the CPU backend's.
    pages.retain(|name| !["README", "cpu"].contains(&name.as_str()));
    let registered = REGISTRY.iter().map(|variant| variant.spec.id.to_owned()).collect();
    assert_eq!(pages, registered);
    for spec in REGISTRY.iter().map(|variant| variant.spec) {
        let page = std::fs::read_to_string(folder.join(format!("{}.md", spec.id))).unwrap();
        let parts = if spec.rung { &PARTS[..] } else { &[] };
        let parts = parts.iter().chain([&spec.id]);
        let lacking: Vec<_> = parts.filter(|part| !page.contains(**part)).collect();
        assert!(lacking.is_empty(), "docs/kernels/{}.md lacks {lacking:?}", spec.id);
    }
}
