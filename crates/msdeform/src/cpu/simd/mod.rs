//! One vector of `f32`, as every instruction set provides it.
//!
//! The trait holds only what the kernels need where the compiler cannot be trusted to find the
//! right instruction: loads and stores with conversion and masked tails, multiply-add, horizontal
//! sums. Per-sample arithmetic is written as plain loops over arrays, which every compiler
//! vectorises once it stands inside of a `#[target_feature]` function.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod scalar;

use half::{bf16, f16};

use super::isa::Kernel;
use crate::Element;

/// Vector operations of one instruction set.
///
/// # Safety
/// Every function requires that the machine has the instruction set, and of pointers that the
/// elements read or written (all `LANES`, or the first `count < LANES` for `_first`) are valid.
/// Pointers need only the alignment of their element.
pub(crate) trait Simd: Copy + 'static {
    /// `LANES` floats.
    type Vector: Copy;

    /// Floats in one vector.
    const LANES: usize;
    /// Whether `f32::mul_add` is one instruction here (else it is a library call).
    const FUSED: bool;

    /// Runs a kernel as a function of its own. Kernels share code that they enter; code that they call is copied into each.
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output;

    unsafe fn splat(x: f32) -> Self::Vector;
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The horizontal sums of four vectors.
    unsafe fn sum_each(vectors: [Self::Vector; 4]) -> [f32; 4];

    unsafe fn load<T: Storage>(from: *const T) -> Self::Vector;
    /// Lanes from `count` on are zero.
    unsafe fn load_first<T: Storage>(from: *const T, count: usize) -> Self::Vector;
    unsafe fn store<T: Storage>(to: *mut T, vector: Self::Vector);
    unsafe fn store_first<T: Storage>(to: *mut T, vector: Self::Vector, count: usize);
    /// A full vector to memory that will not be read soon, past the caches where the set can. `to`
    /// is aligned to the vector as stored.
    unsafe fn stream<T: Storage>(to: *mut T, vector: Self::Vector) {
        // SAFETY: as for `store`.
        unsafe { Self::store(to, vector) }
    }
    /// Orders streamed stores before everything that follows.
    unsafe fn stream_end() {}

    /// Asks for a cache line that will be read soon; any address is allowed.
    #[inline(always)]
    fn prefetch<T>(_address: *const T) {}
}

/// A dtype that vectors are loaded from and stored to: `f32`, or one of the two of 16 bits.
pub(crate) trait Storage: Element {
    const IS_HALF: bool = size_of::<Self>() == size_of::<u16>();
}

impl Storage for f32 {}
impl Storage for f16 {}
impl Storage for bf16 {}
