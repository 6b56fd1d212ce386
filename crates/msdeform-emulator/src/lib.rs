//! Runs CUDA kernels on the host: the very same sources, compiled by the host's C++ compiler under
//! `AddressSanitizer` and `UndefinedBehaviorSanitizer`, every thread of a block a fiber.
//!
//! ```no_run
//! use msdeform_emulator::{Buffer, EmulatedKernel, Launch, Specialisation, placeholder_address};
//!
//! let kernel = EmulatedKernel::compile(&Specialisation {
//!     source: "crates/msdeform-cuda/kernels/fwd_general.cu".into(),
//!     headers: vec!["crates/msdeform-cuda/kernels".into()],
//!     entries: vec!["fwd_general".into()],
//!     defines: vec!["-DMSDA_LEVELS=4".into()],
//! })?;
//! // Pointers inside the parameters are placeholders; the launch puts the real addresses there.
//! let mut params = vec![0u8; 8];
//! params.copy_from_slice(&placeholder_address(0).to_le_bytes());
//! let mut launch = Launch::new([1, 1, 1], [128, 1, 1], 0, params);
//! launch.buffers.push(Buffer::output(4096));
//! let outputs = kernel.launch(&launch)?;
//! # Ok::<(), msdeform_emulator::EmulatorError>(())
//! ```
//!
//! What is modelled and what is not: see the README of this crate.

mod error;
mod kernel;
mod launch;
mod tensor_map;
mod toolchain;
mod wire;

pub use error::{EmulatorError, Fault};
pub use kernel::{EmulatedKernel, Specialisation};
pub use launch::{Buffer, Launch, LaunchStep, Order, placeholder_address};
pub use tensor_map::{TENSOR_MAP_BYTES, TensorMap};
pub use toolchain::compiler_version;
