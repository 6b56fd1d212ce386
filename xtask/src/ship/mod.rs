//! What leaves the house: wheels for every platform, crates, and the release that is made of them.

pub mod api;
pub mod artifacts;
pub mod crates;
mod dll;
mod frameworks;
mod mach_o;
pub mod platforms;
pub mod release;
pub mod trial;
pub mod version;
pub mod wheel;
