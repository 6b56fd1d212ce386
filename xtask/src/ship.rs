//! What is published: wheels for every platform, crates, and releases.

pub mod api;
pub mod platforms;
pub mod release;
pub mod wheel;
