//! The CPU backend: forward and backward for `f32`, `f16` and `bf16`, in `f32` arithmetic.
//!
//! The algorithm is written once (`forward`, `backward`) over a small vector trait (`simd`) and
//! compiled for every instruction set ([`Isa`]), of which the best one is chosen at run time.

mod backward;
mod ceiling;
mod forward;
mod geometry;
pub(crate) mod isa;
mod piece;
mod placement;
pub(crate) mod plan;
mod simd;
mod sink;
mod softmax;
mod source;
mod staging;
pub(crate) mod workers;
mod workspace;

pub use ceiling::multiply_adds;
pub use plan::is_for_one_thread;
pub use workers::max_threads;

use crate::{DType, DeviceKind, Direction, Isa, Numerics, ValueLayout, VariantSpec};

/// One registered CPU implementation.
#[derive(Clone, Debug)]
pub struct CpuVariant {
    /// What it says about itself.
    pub spec: VariantSpec,
    /// The instructions it is compiled for.
    pub isa: Isa,
}

impl CpuVariant {
    /// Whether this machine can run it.
    pub fn is_available(&self) -> bool {
        self.isa.is_available()
    }
}

/// Every CPU implementation; the scalar ones come first and are the baseline.
pub fn variants() -> &'static [CpuVariant] {
    &VARIANTS
}

static VARIANTS: [CpuVariant; 8] = [
    describe(Direction::Forward, Isa::Scalar),
    describe(Direction::Forward, Isa::Avx2),
    describe(Direction::Forward, Isa::Avx512),
    describe(Direction::Forward, Isa::Neon),
    describe(Direction::Backward, Isa::Scalar),
    describe(Direction::Backward, Isa::Avx2),
    describe(Direction::Backward, Isa::Avx512),
    describe(Direction::Backward, Isa::Neon),
];

const fn describe(direction: Direction, isa: Isa) -> CpuVariant {
    let id = match (direction, isa) {
        (Direction::Forward, Isa::Scalar) => "fwd_cpu_scalar",
        (Direction::Forward, Isa::Avx2) => "fwd_cpu_avx2",
        (Direction::Forward, Isa::Avx512) => "fwd_cpu_avx512",
        (Direction::Forward, Isa::Neon) => "fwd_cpu_neon",
        (Direction::Backward, Isa::Scalar) => "bwd_cpu_scalar",
        (Direction::Backward, Isa::Avx2) => "bwd_cpu_avx2",
        (Direction::Backward, Isa::Avx512) => "bwd_cpu_avx512",
        (Direction::Backward, Isa::Neon) => "bwd_cpu_neon",
    };
    let (idea, why) = match (isa, direction) {
        (Isa::Scalar, Direction::Forward) => (
            "place sixteen samples at once, then sum their rows; plain Rust",
            "runs everywhere; the baseline",
        ),
        (Isa::Scalar, Direction::Backward) => (
            "a task owns one head of one level: all three gradients in one pass, no atomics; plain Rust",
            "runs everywhere, same bits for any number of threads; the baseline",
        ),
        (Isa::Avx2, _) => (
            "the same with 8 lanes, fused multiply-add and F16C conversion",
            "every x86-64 machine of the last decade",
        ),
        (Isa::Avx512, _) => (
            "the same with 16 lanes and masked tails",
            "a 32-channel row is two registers: half the instructions of AVX2",
        ),
        (Isa::Neon, _) => {
            ("the same with the 4 lanes of 64-bit ARM", "Graviton, Grace and Apple machines")
        }
    };
    let spec = VariantSpec {
        id,
        direction,
        device: DeviceKind::Cpu,
        dtypes: &DType::FAST,
        layouts: &ValueLayout::ALL,
        origin: "ours",
        idea,
        why,
        numerics: Numerics::Contract,
        rung: false,
    };
    CpuVariant { spec, isa }
}
