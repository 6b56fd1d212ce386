//! What is published: wheels for every platform, crates, and the release that is made of them.

pub mod api;
pub mod crates;
pub mod platforms;
pub mod release;
pub mod trial;
pub mod version;
pub mod wheel;
