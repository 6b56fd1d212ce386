//! The fallback: four lanes of plain Rust, which the compiler maps to what the target's
//! baseline has.

use super::{Simd, Storage};
use crate::cpu::isa::Kernel;

/// Plain Rust; available everywhere.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    type Vector = [f32; 4];

    const LANES: usize = 4;
    const FUSED: bool = cfg!(target_feature = "fma") || cfg!(target_arch = "aarch64");

    #[inline(never)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: plain Rust needs no instruction set.
        unsafe { kernel.call::<Self>() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    unsafe fn sum_each(vectors: [[f32; 4]; 4]) -> [f32; 4] {
        vectors.map(|[a, b, c, d]| (a + b) + (c + d))
    }

    #[inline(always)]
    unsafe fn load<T: Storage>(from: *const T) -> [f32; 4] {
        // SAFETY: the caller vouches for all four elements.
        unsafe { Self::load_first(from, 4) }
    }
    #[inline(always)]
    unsafe fn load_first<T: Storage>(from: *const T, count: usize) -> [f32; 4] {
        let mut vector = [0.0; 4];
        for (lane, x) in vector.iter_mut().enumerate().take(count) {
            // SAFETY: the caller vouches for the first `count` elements.
            *x = unsafe { from.add(lane).read() }.to_f32();
        }
        vector
    }
    #[inline(always)]
    unsafe fn store<T: Storage>(to: *mut T, vector: [f32; 4]) {
        // SAFETY: the caller vouches for all four elements.
        unsafe { Self::store_first(to, vector, 4) }
    }
    #[inline(always)]
    unsafe fn store_first<T: Storage>(to: *mut T, vector: [f32; 4], count: usize) {
        for (lane, &x) in vector.iter().enumerate().take(count) {
            // SAFETY: the caller vouches for the first `count` elements.
            unsafe { to.add(lane).write(T::from_f32(x)) }
        }
    }
}
