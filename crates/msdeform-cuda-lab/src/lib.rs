//! What only the laboratory runs on a GPU: the ladder of techniques and the probes of what a GPU can do. The product,
//! `msdeform-cuda`, knows nothing of it.

mod fwd_original;
mod ladder;
pub mod preamble;
pub mod probe;
pub mod registry;
pub mod sources;
mod tensor_map;
mod texture;

pub use ladder::claim;
pub use registry::REGISTRY;
