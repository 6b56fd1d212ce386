//! msdeform as operators of PyTorch.
//!
//! The Python package links it and registers the kernels; the rest of the operators is in Python. Processes without
//! Python, such as a C++ program that runs a package of `AOTInductor`, load the package's library, or this one alone: both export
//! one function, [`msdeform_torch_register`].
//!
//! Nothing is linked against PyTorch: its stable C interface is looked up in the libtorch that the process has.
//!
//! Kernels compute where their tensors are: on the CPU, or on a GPU, on PyTorch's current stream there and with memory of
//! its allocator.

#![allow(missing_docs, reason = "not published: comments give reasons")]

pub mod call;
pub mod cpu;
pub mod cuda;
pub mod error;
pub mod register;

mod boxed;
mod kernels;
mod libtorch;
mod tensor;

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

pub use boxed::take_refusal;
pub use libtorch::Libtorch;

/// Defines the operators in the libtorch of this process and gives them their kernels. Null if that is done, now or by an earlier
/// call; else what is wrong, a text that stays.
#[unsafe(no_mangle)]
pub extern "C" fn msdeform_torch_register() -> *const c_char {
    static OUTCOME: OnceLock<Option<CString>> = OnceLock::new();
    let outcome = OUTCOME.get_or_init(|| {
        let error = register_all().err()?;
        Some(CString::new(error).unwrap_or_else(|_| c"PyTorch refused".to_owned()))
    });
    outcome.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

fn register_all() -> Result<(), String> {
    let torch = Libtorch::find()?;
    register::define(torch).map_err(|error| error.to_string())?;
    register::implement(torch).map_err(|error| error.to_string())?;
    if let Some(folder) = libtorch::folder_of_packages() {
        msdeform_cuda::nvrtc::search_packages(vec![folder]);
    }
    Ok(())
}
