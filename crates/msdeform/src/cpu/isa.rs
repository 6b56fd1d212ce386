//! Instruction sets, which of them this machine has, and how a kernel enters one.

#[cfg(target_arch = "aarch64")]
use super::simd::neon;
use super::simd::{Simd, scalar};
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2, avx512};

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, no intrinsics: runs everywhere and is the baseline of every comparison.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C: 8 lanes.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL: 16 lanes and masked tails.
    Avx512,
    /// 64-bit ARM: 4 lanes.
    Neon,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The name used on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::is_available(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::is_available(),
            #[allow(unreachable_patterns, reason = "which sets remain depends on the target")]
            _ => false,
        }
    }

    /// The fastest one that this machine has.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
    }

    /// Floats in one vector.
    pub(crate) const fn lanes(self) -> usize {
        match self {
            Self::Scalar | Self::Neon => 4,
            Self::Avx2 => 8,
            Self::Avx512 => 16,
        }
    }

    /// Runs a kernel compiled for this instruction set; the scalar one where the machine lacks it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.is_available(), "a plan never holds an unavailable instruction set");
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if self.is_available() => {
                // SAFETY: availability was checked in the guard.
                unsafe { avx2::Avx2::enter(kernel) }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if self.is_available() => {
                // SAFETY: availability was checked in the guard.
                unsafe { avx512::Avx512::enter(kernel) }
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon if self.is_available() => {
                // SAFETY: availability was checked in the guard.
                unsafe { neon::Neon::enter(kernel) }
            }
            _ => {
                // SAFETY: plain Rust needs no instruction set.
                unsafe { scalar::Scalar::enter(kernel) }
            }
        }
    }
}

/// An algorithm written once, to be compiled for every instruction set.
pub(crate) trait Kernel {
    type Output;

    /// The algorithm. Implementations are `#[inline(always)]`, so that their code, and all that it
    /// calls, is compiled inside of the `#[target_feature]` function that enters the set.
    ///
    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn call<S: Simd>(self) -> Self::Output;
}
