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

    unsafe fn splat(x: f32) -> Self::Vector;
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The horizontal sums of four vectors.
    unsafe fn sum_each(vectors: [Self::Vector; 4]) -> [f32; 4];

    unsafe fn load_f32(from: *const f32) -> Self::Vector;
    /// Lanes from `count` on are zero.
    unsafe fn load_f32_first(from: *const f32, count: usize) -> Self::Vector;
    unsafe fn store_f32(to: *mut f32, vector: Self::Vector);
    unsafe fn store_f32_first(to: *mut f32, vector: Self::Vector, count: usize);
    /// A full vector to memory that will not be read soon, past the caches where the set can. `to`
    /// is aligned to the vector as stored.
    unsafe fn stream_f32(to: *mut f32, vector: Self::Vector) {
        // SAFETY: as for `store_f32`.
        unsafe { Self::store_f32(to, vector) }
    }
    unsafe fn stream_f16(to: *mut f16, vector: Self::Vector) {
        // SAFETY: as for `store_f16`.
        unsafe { Self::store_f16(to, vector) }
    }
    unsafe fn stream_bf16(to: *mut bf16, vector: Self::Vector) {
        // SAFETY: as for `store_bf16`.
        unsafe { Self::store_bf16(to, vector) }
    }
    /// Orders streamed stores before everything that follows.
    unsafe fn stream_end() {}

    unsafe fn load_f16(from: *const f16) -> Self::Vector;
    unsafe fn load_f16_first(from: *const f16, count: usize) -> Self::Vector;
    unsafe fn store_f16(to: *mut f16, vector: Self::Vector);
    unsafe fn store_f16_first(to: *mut f16, vector: Self::Vector, count: usize);

    unsafe fn load_bf16(from: *const bf16) -> Self::Vector;
    unsafe fn load_bf16_first(from: *const bf16, count: usize) -> Self::Vector;
    unsafe fn store_bf16(to: *mut bf16, vector: Self::Vector);
    unsafe fn store_bf16_first(to: *mut bf16, vector: Self::Vector, count: usize);

    /// Asks for a cache line that will be read soon; any address is allowed.
    #[inline(always)]
    fn prefetch<T>(_address: *const T) {}
}

/// A storage format that vectors are loaded from and stored to.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait Storage: Element {
    unsafe fn load<S: Simd>(from: *const Self) -> S::Vector;
    unsafe fn load_first<S: Simd>(from: *const Self, count: usize) -> S::Vector;
    unsafe fn store<S: Simd>(to: *mut Self, vector: S::Vector);
    unsafe fn store_first<S: Simd>(to: *mut Self, vector: S::Vector, count: usize);
    unsafe fn stream<S: Simd>(to: *mut Self, vector: S::Vector);
}

macro_rules! storage {
    ($type:ty, $load:ident, $load_first:ident, $store:ident, $store_first:ident, $stream:ident) => {
        impl Storage for $type {
            #[inline(always)]
            unsafe fn load<S: Simd>(from: *const Self) -> S::Vector {
                // SAFETY: the caller's promise is the one needed.
                unsafe { S::$load(from) }
            }
            #[inline(always)]
            unsafe fn load_first<S: Simd>(from: *const Self, count: usize) -> S::Vector {
                // SAFETY: the caller's promise is the one needed.
                unsafe { S::$load_first(from, count) }
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(to: *mut Self, vector: S::Vector) {
                // SAFETY: the caller's promise is the one needed.
                unsafe { S::$store(to, vector) }
            }
            #[inline(always)]
            unsafe fn store_first<S: Simd>(to: *mut Self, vector: S::Vector, count: usize) {
                // SAFETY: the caller's promise is the one needed.
                unsafe { S::$store_first(to, vector, count) }
            }
            #[inline(always)]
            unsafe fn stream<S: Simd>(to: *mut Self, vector: S::Vector) {
                // SAFETY: the caller's promise is the one needed.
                unsafe { S::$stream(to, vector) }
            }
        }
    };
}

storage!(f32, load_f32, load_f32_first, store_f32, store_f32_first, stream_f32);
storage!(f16, load_f16, load_f16_first, store_f16, store_f16_first, stream_f16);
storage!(bf16, load_bf16, load_bf16_first, store_bf16, store_bf16_first, stream_bf16);
