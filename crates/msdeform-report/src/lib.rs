//! What is made of measurements: records on disk and the release that documents quote, the report, the tables and pictures
//! of the README and the ladder, other implementations compared with ours, and the ledger of what a GPU has verified.

#![allow(
    missing_docs,
    reason = "this crate is not published; its comments give reasons, not names"
)]

mod budget;
mod chart;
pub mod documents;
mod folder;
pub mod ladder;
pub mod ledger;
pub mod overview;
pub mod page;
mod peers;
mod python;
pub mod release;
mod render;
pub mod roofline;
pub mod soak;
mod summary;
pub mod table;

pub use folder::{RecordFolder, write};
pub use python::runs as python_runs;
pub use summary::summary;

/// The code in pages of the site that need more than one crate is compiled, and run where no GPU is needed.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/rust.md")]
    struct InRust;
}
