//! Multi-scale deformable attention for [candle](candle_core): the sampling operator inside Deformable-DETR, DINO, RT-DETR and
//! Mask2Former, forward and backward, on the CPU and,
//! with the feature `cuda`, on NVIDIA's GPUs.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use msdeform_candle::ms_deform_attn;
//!
//! let device = Device::Cpu;
//! let value = Tensor::rand(0f32, 1., (2, 1280, 8, 32), &device)?; //         [N, S, M, D]
//! let locations = Tensor::rand(0f32, 1., (2, 300, 8, 2, 4, 2), &device)?; // [N, Lq, M, L, P, 2]
//! let weights = Tensor::full(0.125f32, (2, 300, 8, 2, 4), &device)?; //      [N, Lq, M, L, P]
//! let output = ms_deform_attn(&value, [(32, 32), (16, 16)], &locations, &weights)?;
//! assert_eq!(output.dims(), [2, 300, 256]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! - [`ms_deform_attn`] is the plain operator, which reads locations and weights. The fused one reads what a model's linear
//!   layers give.
//! - [`MSDeformAttn`] is the layer of Deformable-DETR with its projections; its checkpoints load.
//! - Gradients are candle's: `loss.backward()` has those of all inputs that it tracks.
//! - Tensors may be views. What cannot be read where it lies is copied.
//! - An [`Error`] says which tensor, what was expected and what was found, before anything runs.

mod call;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod levels;
mod module;
mod operator;

pub use error::{Error, Result};
pub use levels::Levels;
pub use module::{Config, MSDeformAttn};
pub use msdeform::Offsets;
pub use operator::*;

/// The code of the pages is compiled and run like every other example.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
    #[doc = include_str!("../../../docs/candle.md")]
    struct OfTheSite;
}
