//! NEON: the four lanes that every 64-bit ARM has.

use std::arch::aarch64::*;

use super::{Simd, Storage};
use crate::DType;
use crate::cpu::isa::Kernel;

/// Advanced SIMD of 64-bit ARM.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

pub(crate) fn is_available() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

/// # Safety
/// [`is_available`] holds.
#[inline(never)]
#[target_feature(enable = "neon")]
unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { kernel.call::<Neon>() }
}

impl Simd for Neon {
    type Vector = float32x4_t;

    const LANES: usize = 4;
    const FUSED: bool = true;

    #[inline(always)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn sum_each([a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        let mut sums = [0f32; 4];
        // SAFETY: register arithmetic, and a store of four floats.
        unsafe {
            let abcd = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
            vst1q_f32(sums.as_mut_ptr(), abcd);
        }
        sums
    }

    #[inline(always)]
    unsafe fn load<T: Storage>(from: *const T) -> float32x4_t {
        // SAFETY: the caller vouches for four elements.
        unsafe {
            match T::DTYPE {
                DType::F16 => from_f16(vld1_u16(from.cast())),
                DType::Bf16 => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast()))),
                _ => vld1q_f32(from.cast()),
            }
        }
    }
    /// Converts one by one.
    #[inline(always)]
    unsafe fn load_first<T: Storage>(from: *const T, count: usize) -> float32x4_t {
        let mut lanes = [0f32; 4];
        for (lane, x) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller vouches for the first `count` elements.
            *x = unsafe { from.add(lane).read() }.to_f32();
        }
        // SAFETY: four floats are there.
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store<T: Storage>(to: *mut T, vector: float32x4_t) {
        // SAFETY: the caller vouches for four elements.
        unsafe {
            match T::DTYPE {
                DType::F16 => Self::store_first(to, vector, 4),
                DType::Bf16 => vst1_u16(to.cast(), to_bf16(vector)),
                _ => vst1q_f32(to.cast(), vector),
            }
        }
    }
    /// Converts one by one.
    #[inline(always)]
    unsafe fn store_first<T: Storage>(to: *mut T, vector: float32x4_t, count: usize) {
        let mut lanes = [0f32; 4];
        // SAFETY: four floats are there, and the caller vouches for `count` elements.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), vector);
            for (lane, &x) in lanes.iter().enumerate().take(count) {
                to.add(lane).write(T::from_f32(x));
            }
        }
    }
}

/// In integers and one multiplication, which also gets subnormals right: the exponent of a half
/// moved into an `f32` is 112 too small. The half precision conversions are not stable in Rust.
#[inline(always)]
unsafe fn from_f16(halves: uint16x4_t) -> float32x4_t {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        let bits = vmovl_u16(halves);
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        let magnitude = vandq_u32(bits, vdupq_n_u32(0x7fff));
        let shifted = vreinterpretq_f32_u32(vshlq_n_u32::<13>(magnitude));
        let scaled = vmulq_f32(shifted, vdupq_n_f32(f32::from_bits((127 + 112) << 23)));
        // Infinity and NaN keep the largest exponent.
        let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00));
        let largest = vandq_u32(special, vdupq_n_u32(0x7f80_0000));
        let number = vorrq_u32(vreinterpretq_u32_f32(scaled), largest);
        vreinterpretq_f32_u32(vorrq_u32(number, sign))
    }
}

/// Nearest even, NaN stays NaN.
#[inline(always)]
unsafe fn to_bf16(vector: float32x4_t) -> uint16x4_t {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        let bits = vreinterpretq_u32_f32(vector);
        let upper = vshrq_n_u32::<16>(bits);
        let odd = vandq_u32(upper, vdupq_n_u32(1));
        let bias = vaddq_u32(odd, vdupq_n_u32(0x7fff));
        let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, bias));
        let quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
        let number = vceqq_f32(vector, vector);
        vmovn_u32(vbslq_u32(number, rounded, quiet))
    }
}
