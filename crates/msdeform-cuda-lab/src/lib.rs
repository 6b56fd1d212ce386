//! What only the laboratory runs on a GPU: the ladder of techniques, the probes of what a GPU can do, the shapes of known
//! models and the ledger of what a GPU has verified. The product, `msdeform-cuda`, knows nothing of it.

mod fwd_original;
mod ladder;
pub mod ledger;
pub mod models;
pub mod preamble;
pub mod probe;
pub mod registry;
pub mod sources;
mod tensor_map;
mod texture;

pub use ladder::claim;
pub use registry::REGISTRY;
