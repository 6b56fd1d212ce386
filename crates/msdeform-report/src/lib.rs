//! What is made of measurements: records on disk and the release that documents quote, the report, the tables and pictures
//! of the README and the ladder, other implementations compared with ours, and the ledger of what a GPU has verified.

mod bars;
mod budget;
mod folder;
pub mod ladder;
pub mod ledger;
pub mod models;
pub mod overview;
pub mod page;
pub mod peers;
pub mod python_runs;
pub mod readme;
pub mod release;
pub mod roofline;
pub mod soak;
mod summary;
pub mod table;

pub use folder::{RecordFolder, write};
pub use summary::summary;

/// The code in pages of the site that need more than one crate is compiled, and run where no GPU is needed.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/rust.md")]
    struct InRust;
}
