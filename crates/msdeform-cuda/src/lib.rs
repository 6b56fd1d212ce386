//! CUDA backend of [`msdeform`]: kernels compiled when they are first needed, launched through the
//! driver on the caller's stream and the caller's memory.
//!
//! Nothing here links against CUDA. Without a driver, a GPU or NVRTC every entry point returns an
//! [`Error`] that names what is missing and what to do.
//!
//! # With cudarc
//! Buffers and streams of any library will do, as long as they belong to the device's primary
//! context; this is how cudarc's are used:
//!
//! ```no_run
//! # // The fifteen lines, compiled.
//! use msdeform::{DType, Problem, Role};
//! use msdeform_cuda::{Engine, Plan, Pointers, Stream};
//! use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
//!
//! let queue = CudaContext::new(0)?.new_stream()?;
//! let problem = Problem::builder().heads(8).channels(32).queries(300).points(4)
//!     .levels([(100, 167), (50, 84), (25, 42), (13, 21)]).dtype(DType::F32).build()?;
//! let value = queue.clone_htod(&vec![0f32; problem.value_len()])?;
//! let locations = queue.clone_htod(&vec![0.5f32; problem.locations_len()])?;
//! let weights = queue.clone_htod(&vec![0.1f32; problem.weights_len()])?;
//! let mut output = queue.alloc_zeros::<f32>(problem.output_len())?;
//!
//! let engine = Engine::new(0)?;
//! let plan = Plan::forward(&engine, &problem)?;
//! let ((v, _v), (l, _l)) = (value.device_ptr(&queue), locations.device_ptr(&queue));
//! let ((w, _w), (o, _o)) = (weights.device_ptr(&queue), output.device_ptr_mut(&queue));
//! let tensors = [(Role::Value, v), (Role::Locations, l), (Role::Weights, w), (Role::Output, o)];
//! // SAFETY: the stream and the four tensors outlive the launch and have the problem's sizes.
//! unsafe {
//!     let stream = Stream::borrow(engine.context(), queue.cu_stream().cast())?;
//!     plan.launch(&stream, &Pointers::from(tensors))?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On its own
//! [`DeviceBuffer`] is device memory for those who have no allocator:
//!
//! ```no_run
//! # use msdeform::Problem;
//! # let problem = Problem::builder().channels(32).queries(9).levels([(8, 8)]).build()?;
//! # let (value, locations, weights) = (vec![0f32; 1], vec![0f32; 1], vec![0f32; 1]);
//! use msdeform::Role;
//! use msdeform_cuda::{Argument, DeviceBuffer, Engine, Plan, Stream};
//!
//! let engine = Engine::new(0)?;
//! let stream = Stream::new(engine.context())?;
//! let value = DeviceBuffer::from_host(&stream, &value)?;
//! let locations = DeviceBuffer::from_host(&stream, &locations)?;
//! let weights = DeviceBuffer::from_host(&stream, &weights)?;
//! let mut output = DeviceBuffer::<f32>::filled(&stream, problem.output_len(), 0)?;
//! Plan::forward(&engine, &problem)?.run(&stream, [
//!     Argument::read(Role::Value, &value),
//!     Argument::read(Role::Locations, &locations),
//!     Argument::read(Role::Weights, &weights),
//!     Argument::write(Role::Output, &mut output),
//! ])?;
//! let output = output.to_host(&stream)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Gradients
//! A backward plan computes the wanted gradients and writes every element of them. It has two
//! modes: fast, and [deterministic](msdeform::Mode), which is bitwise reproducible.
//!
//! ```no_run
//! # use msdeform::Problem;
//! # let problem = Problem::builder().channels(32).queries(9).levels([(8, 8)]).build()?;
//! use msdeform::{Gradients, Mode, Role};
//! use msdeform_cuda::{Argument, BackwardOptions, DeviceBuffer, Engine, Plan, PlanOptions, Stream};
//!
//! let engine = Engine::new(0)?;
//! let stream = Stream::new(engine.context())?;
//! # let value = DeviceBuffer::<f32>::filled(&stream, problem.value_len(), 0)?;
//! # let locations = DeviceBuffer::<f32>::filled(&stream, problem.locations_len(), 0)?;
//! # let weights = DeviceBuffer::<f32>::filled(&stream, problem.weights_len(), 0)?;
//! # let grad_output = DeviceBuffer::<f32>::filled(&stream, problem.output_len(), 0)?;
//! let options = PlanOptions::backward(BackwardOptions {
//!     mode: Mode::Deterministic,
//!     gradients: Gradients { locations: false, ..Gradients::ALL },
//!     ..Default::default()
//! });
//! let mut plan = Plan::new(&engine, &problem, &options)?;
//! let mut grad_value = DeviceBuffer::<f32>::filled(&stream, problem.value_len(), 0)?;
//! let mut grad_weights = DeviceBuffer::<f32>::filled(&stream, problem.weights_len(), 0)?;
//! plan.run(&stream, [
//!     Argument::read(Role::Value, &value),
//!     Argument::read(Role::Locations, &locations),
//!     Argument::read(Role::Weights, &weights),
//!     Argument::read(Role::GradOutput, &grad_output),
//!     Argument::write(Role::GradValue, &mut grad_value),
//!     Argument::write(Role::GradWeights, &mut grad_weights),
//! ])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `MSDEFORM_NVRTC` | the NVRTC to use: libnvrtc.so or its folder |
//! | `MSDEFORM_CACHE_DIR` | where compiled kernels are kept; empty keeps none |
//! | `MSDEFORM_KERNEL_PACK` | the kernel pack instead of the one among the Python packages; `off` or empty uses none |
//! | `MSDEFORM_VARIANT` | the variant for every plan of its direction that names none |
//! | `MSDEFORM_TUNING` | the tuning file instead of the user's; `off` or empty uses none |

pub mod ahead;
mod derived;
mod driver;
mod engine;
mod error;
mod jit;
mod params;
mod pipeline;
mod plan;
pub mod registry;
pub mod tuning;

// The laboratory measures kernels one by one, the ledger hashes them and the emulator runs them without a GPU. They and the
// Python package see these parts, which may change in any release.
#[doc(hidden)]
pub mod dispatch;
#[doc(hidden)]
pub mod kernel_text;
#[doc(hidden)]
pub mod nvrtc;
#[doc(hidden)]
pub mod preamble;
#[doc(hidden)]
pub mod sources;
#[doc(hidden)]
pub mod tensorrt;
#[doc(hidden)]
pub mod variants;
#[doc(hidden)]
pub use derived::Derived;
#[doc(hidden)]
pub use driver::{Function, Module, broken_guards, check, guard_allocations};
#[doc(hidden)]
pub use jit::{
    COMMON_OPTIONS, Code, CodeOrigin, JitCounts, KernelPack, Key, PackGroup, Recipe, decode_entry,
    encode_entry, encode_pack,
};
#[doc(hidden)]
pub use params::{INLINE_LEVELS, LevelGeometry, Params, level_geometry};
#[doc(hidden)]
pub use pipeline::{Pipeline, Region, Step, WORKSPACE_ALIGNMENT, entry_name};

pub use driver::{
    Context, DeviceBuffer, DeviceProps, Event, Graph, LaunchGeometry, Launched, Stream,
    device_count, driver_version,
};
pub use engine::Engine;
pub use error::{Cause, ContextLost, CudaVersion, DriverError, Error, Result};
pub use jit::{CodeStore, DiskCache};
pub use plan::{
    Ahead, Argument, BackwardOptions, OFFSETS_ARE_VERIFIED, Plan, PlanOptions, PlannedKernel,
    PointerChecks, Pointers, Workspace,
};
pub use registry::REGISTRY;
