//! What is published: wheels for every platform, crates, and releases.

pub mod api;
pub mod crates;
pub mod platforms;
pub mod release;
pub mod trial;
pub mod wheel;
