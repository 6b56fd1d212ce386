//! The C interface of msdeform: what `libmsdeform` exports and `msdeform.h` declares.
//!
//! The header is generated from these sources and committed (`include/msdeform.h`); names are therefore those of C. How it
//! is used is told in the header and in `docs/c.md`, why it is as it is in `docs/adr/0016-c-interface.md`.
//!
//! Every function goes through `entry` of [`status`]: it catches panics, and turns errors into a code and a text. What a caller
//! hands over comes in as pointers and integers and is checked before it becomes anything else (`border`).

#![allow(non_camel_case_types, reason = "the names of C types are those of C")]
#![allow(
    clippy::doc_markdown,
    reason = "comments become those of the header, which knows no Markdown"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "what pointers must lead to is the same for all functions and is told once, at the top of the header"
)]

mod border;

// Apart from each other, so that they stay in the order of the header.
pub mod status;

pub mod problem;

pub mod tensors;

pub mod cpu;

pub mod cuda;

use std::ffi::{CStr, c_char};

/// The version of the binary interface that this header describes. It goes up when something that exists changes; what
/// is added leaves it as it is. `msdeform_abi_version()` is that of the library that was found at run time.
pub const MSDEFORM_ABI_VERSION: u32 = 1;

/// The version of the binary interface of the library. A program compiled with another `MSDEFORM_ABI_VERSION` must not
/// call anything else.
///
/// Any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn msdeform_abi_version() -> u32 {
    MSDEFORM_ABI_VERSION
}

/// The version of the library, such as "0.1.0". `MSDEFORM_VERSION` is that of the header. Never null, never freed.
///
/// Any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn msdeform_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"unknown",
        };
    VERSION.as_ptr()
}
