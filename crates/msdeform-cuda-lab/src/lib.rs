//! The GPU code of the laboratory: the ladder of techniques, and the probes that measure the limits of a GPU. The
//! product, `msdeform-cuda`, does not depend on it.

mod fwd_original;
mod ladder;
mod persisting;
pub mod preamble;
pub mod probe;
pub mod registry;
pub mod sources;
mod tensor_map;
mod texture;

pub use ladder::claim;
pub use registry::REGISTRY;
