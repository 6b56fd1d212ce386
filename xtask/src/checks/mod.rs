//! Checks of the tree that no compiler makes.

pub mod kernel_text;
pub mod links;
pub mod paths;
pub mod records;
pub mod shared_builds;
pub mod variant_pages;
pub mod wheel_parts;
