//! Multi-scale deformable attention: the sampling operator inside Deformable-DETR, DINO, RT-DETR,
//! Mask2Former, Grounding DINO and BEVFormer, forward and backward, exact and fast.
//!
//! ```
//! use msdeform::{Problem, Role};
//!
//! // One image, 8 heads of 32 channels, 300 queries, 4 points on each of two levels.
//! let problem = Problem::builder()
//!     .heads(8).channels(32).queries(300).points(4).levels([(32, 32), (16, 16)]).build()?;
//! let value = vec![1f32; problem.value_len()]; //         [1, 1280, 8, 32]
//! let locations = vec![0.5f32; problem.locations_len()]; // [1, 300, 8, 2, 4, 2], (x, y) in [0, 1]
//! let weights = vec![0.125f32; problem.weights_len()]; //  [1, 300, 8, 2, 4]
//! let mut output = vec![0f32; problem.output_len()]; //    [1, 300, 256]
//! let inputs = [&value, &locations, &weights];
//! msdeform::forward(&problem, inputs, &mut output)?;
//! assert!(output.iter().all(|&x| (x - 1.0).abs() < 1e-6));
//!
//! let mut grad_value = vec![0f32; problem.value_len()];
//! msdeform::backward(&problem, inputs, &output, [(Role::GradValue, &mut grad_value)])?;
//! # Ok::<(), msdeform::Error>(())
//! ```
//!
//! - The fused operator computes locations and weights itself, from a model's raw offsets and logits; see [`Offsets`].
//! - [`Problem`] describes a call: sizes, levels, points per level, layout, formats. It is checked
//!   once, when it is built.
//! - A [`Signature`] makes a [`Problem`] from the shapes and dtypes of a framework's tensors, and a [`PlanCache`] keeps plans
//!   between such calls.
//! - [`forward`] and [`backward`] are the whole job in one call. A [`CpuPlan`] keeps threads, tables
//!   and scratch memory for calls that repeat, and takes a thread count and an instruction set.
//! - Tensors are plain slices or shaped [`TensorView`]s of `f32`, `f16` or `bf16` (the types of the
//!   crate `half`). Arithmetic is `f32` for all of them; [`DType::rel_l2_bound`] is the error
//!   that is allowed, and tested, against the `f64` [`reference`](mod@reference).
//! - Nothing panics on bad input: [`Error`] says which tensor, what was expected and what was found.

mod call;
mod dtype;
mod error;
mod gradients;
mod layout;
mod offsets;
mod operator;
mod plans;
mod problem;
pub mod reference;
mod signature;
mod strides;
mod variant;
mod view;

// The laboratory measures the CPU variants one by one, and the borders share the rules for threads. They see these parts,
// which may change in any release.
#[doc(hidden)]
pub mod cpu;

pub use call::{backward, forward};
pub use cpu::isa::Isa;
pub use cpu::plan::{CpuOptions, CpuPlan};
pub use cpu::workers::LentThreads;
pub use dtype::{DType, Element};
pub use error::Error;
pub use gradients::{BackwardCall, Gradients};
pub use layout::ValueLayout;
pub use offsets::{Offsets, ReferenceKind, ReferenceOf};
pub use operator::*;
pub use plans::{PlanCache, SharedPlans};
pub use problem::{Level, Problem, ProblemBuilder, Shape};
pub use signature::{
    LevelLists, LevelNumbers, OffsetOptions, OffsetRule, Signature, TensorSignature,
};
pub use strides::{OutputStrides, RowStrides, SourceStrides, ValueStrides};
pub use variant::{DeviceKind, Direction, Mode, Numerics, VariantSpec};
pub use view::{TensorView, TensorViewMut};

/// Shown by their names, padded as a format says.
macro_rules! shown_by_name {
    ($($type:ty),*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    )*};
}

shown_by_name!(DeviceKind, Direction, Isa, Mode, ValueLayout);

/// The code in the READMEs is compiled and run like every other example.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
    #[doc = include_str!("../../../README.md")]
    struct OfTheRepository;
}
