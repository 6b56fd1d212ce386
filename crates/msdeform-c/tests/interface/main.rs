//! The interface as C meets it: the header, the libraries, programs, and the functions themselves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod calls;
mod given;
mod gpu;
mod header;
#[cfg(target_os = "linux")]
mod library;
#[cfg(target_os = "linux")]
mod programs;
mod wrong_input;
