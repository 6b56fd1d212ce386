//! Multi-scale deformable attention: the sampling operator inside Deformable-DETR, DINO, RT-DETR,
//! Mask2Former, Grounding DINO and BEVFormer, forward and backward, exact and fast.

mod call;
pub mod cpu;
mod dtype;
mod error;
mod layout;
mod problem;
pub mod reference;
mod variant;
mod view;

pub use call::{backward, forward};
pub use cpu::{CpuOptions, CpuPlan, GradientsMut, Isa};
pub use dtype::{DType, Element};
pub use error::Error;
pub use layout::ValueLayout;
pub use problem::{Level, Problem, ProblemBuilder};
pub use variant::{DeviceKind, Direction, Numerics, VariantSpec};
pub use view::{Slice, SliceMut, TensorView, TensorViewMut, Typed};
