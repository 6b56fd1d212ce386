//! CUDA backend of [`msdeform`]: kernels compiled when they are first needed, launched through the
//! driver on the caller's stream and the caller's memory.
//!
//! Nothing here links against CUDA. Without a driver, a GPU or NVRTC every entry point returns an
//! [`Error`] that says what is missing and what to do.
//!
//! # With cudarc
//! Buffers and streams of any library will do, as long as they belong to the device's primary
//! context; this is how cudarc's are used:
//!
//! ```no_run
//! # // The fifteen lines, compiled.
//! use msdeform::{DType, Problem};
//! use msdeform_cuda::{DevicePointers, Engine, Stream};
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
//! let plan = engine.forward_plan(&problem)?;
//! let ((v, _v), (l, _l)) = (value.device_ptr(&queue), locations.device_ptr(&queue));
//! let ((w, _w), (o, _o)) = (weights.device_ptr(&queue), output.device_ptr_mut(&queue));
//! // SAFETY: the stream and the four tensors outlive the launch and have the problem's sizes.
//! unsafe {
//!     let stream = Stream::borrow(engine.context(), queue.cu_stream().cast())?;
//!     plan.launch(&stream, DevicePointers { value: v, locations: l, weights: w, output: o })?;
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
//! use msdeform_cuda::{DeviceBuffer, Engine, Stream};
//!
//! let engine = Engine::new(0)?;
//! let stream = Stream::new(engine.context())?;
//! let value = DeviceBuffer::from_host(&stream, &value)?;
//! let locations = DeviceBuffer::from_host(&stream, &locations)?;
//! let weights = DeviceBuffer::from_host(&stream, &weights)?;
//! let mut output = DeviceBuffer::<f32>::filled(&stream, problem.output_len(), 0)?;
//! engine.forward_plan(&problem)?.run(&stream, &value, &locations, &weights, &mut output)?;
//! let output = output.to_host(&stream)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Gradients
//! A [`BackwardPlan`] computes the gradients that are asked for and writes every element of them. Two
//! modes: fast, and [deterministic](msdeform::Mode), the same bits on every run.
//!
//! ```no_run
//! # use msdeform::Problem;
//! # let problem = Problem::builder().channels(32).queries(9).levels([(8, 8)]).build()?;
//! use msdeform::Mode;
//! use msdeform_cuda::{
//!     BackwardInputs, BackwardOptions, BackwardPlan, DeviceBuffer, Engine, GradientBuffers,
//!     Gradients, Stream,
//! };
//!
//! let engine = Engine::new(0)?;
//! let stream = Stream::new(engine.context())?;
//! # let value = DeviceBuffer::<f32>::filled(&stream, problem.value_len(), 0)?;
//! # let locations = DeviceBuffer::<f32>::filled(&stream, problem.locations_len(), 0)?;
//! # let weights = DeviceBuffer::<f32>::filled(&stream, problem.weights_len(), 0)?;
//! # let grad_output = DeviceBuffer::<f32>::filled(&stream, problem.output_len(), 0)?;
//! let options = BackwardOptions {
//!     mode: Mode::Deterministic,
//!     gradients: Gradients { locations: false, ..Gradients::ALL },
//!     ..Default::default()
//! };
//! let mut plan = BackwardPlan::new(&engine, &problem, &options)?;
//! let mut grad_value = DeviceBuffer::<f32>::filled(&stream, problem.value_len(), 0)?;
//! let mut grad_weights = DeviceBuffer::<f32>::filled(&stream, problem.weights_len(), 0)?;
//! let inputs = BackwardInputs {
//!     value: &value,
//!     locations: &locations,
//!     weights: &weights,
//!     grad_output: &grad_output,
//! };
//! let gradients = GradientBuffers {
//!     value: Some(&mut grad_value),
//!     locations: None,
//!     weights: Some(&mut grad_weights),
//! };
//! plan.run(&stream, inputs, gradients)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `MSDEFORM_NVRTC` | the NVRTC to use: libnvrtc.so or its folder |
//! | `MSDEFORM_CACHE_DIR` | where compiled kernels are kept; empty keeps none |
//! | `MSDEFORM_VARIANT` | the variant for every plan of its direction that names none |
//! | `MSDEFORM_TUNING` | the tuning file instead of the user's; `off` or empty uses none |

pub mod dispatch;
pub mod driver;
mod engine;
mod error;
mod gradients;
pub mod jit;
pub mod ledger;

pub mod models;
pub mod nvrtc;
mod params;
mod pipeline;
mod plan;
pub mod preamble;
pub mod probe;
pub mod registry;
pub mod sources;
mod strides;
pub mod tuning;
pub mod variants;

pub use driver::{
    Context, DeviceBuffer, DeviceProps, Event, Graph, LaunchGeometry, Launched, Stream,
    device_count, driver_version,
};
pub use engine::{Engine, JitCounts};
pub use error::{Cause, ContextLost, CudaVersion, DriverError, Error, Result};
pub use gradients::Gradients;
pub use jit::DiskCache;
pub use params::{
    BackwardParams, CallShape, ForwardParams, INLINE_LEVELS, LevelGeometry, level_geometry,
};
pub use pipeline::{Pipeline, Region, Step, WORKSPACE_ALIGNMENT, entry_name};
pub use plan::{
    BackwardInputs, BackwardOptions, BackwardPlan, BackwardPointers, DevicePointers, ForwardPlan,
    GradientBuffers, PlanOptions, PlannedKernel, PointerChecks, VARIANT_VARIABLE, Workspace,
};
pub use registry::REGISTRY;
pub use strides::{OutputStrides, ValueStrides};
