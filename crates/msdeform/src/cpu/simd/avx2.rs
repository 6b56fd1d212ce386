//! AVX2 with FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use super::{Simd, Storage};
use crate::DType;
use crate::cpu::isa::Kernel;

/// AVX2, FMA and F16C: x86-64 since Haswell and Zen.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// # Safety
/// [`is_available`] holds.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { kernel.call::<Avx2>() }
}

/// All ones in the first `count < 4` lanes.
#[inline(always)]
unsafe fn first(count: usize) -> __m128i {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe { _mm_cmpgt_epi32(_mm_set1_epi32(count as i32), _mm_setr_epi32(0, 1, 2, 3)) }
}

/// The first `count <= 4` floats; the others are zero.
#[inline(always)]
unsafe fn load_four(from: *const f32, count: usize) -> __m128 {
    // SAFETY: masked lanes are not read; the caller vouches for the others.
    unsafe { if count == 4 { _mm_loadu_ps(from) } else { _mm_maskload_ps(from, first(count)) } }
}

/// Stores the first `count <= 4` floats.
#[inline(always)]
unsafe fn store_four(to: *mut f32, vector: __m128, count: usize) {
    // SAFETY: masked lanes are not written; the caller vouches for the others.
    unsafe {
        if count == 4 {
            _mm_storeu_ps(to, vector);
        } else {
            _mm_maskstore_ps(to, first(count), vector);
        }
    }
}

/// The first `count < 8` halves; AVX2 has no masked 16-bit load, so they go through a register's
/// worth of stack.
#[inline(always)]
unsafe fn load_halves<T>(from: *const T, count: usize) -> __m128i {
    let mut halves = [0u16; 8];
    // SAFETY: the caller vouches for `count < 8` elements of two bytes.
    unsafe {
        if count == 4 {
            return _mm_loadl_epi64(from.cast());
        }
        std::ptr::copy_nonoverlapping(from.cast::<u16>(), halves.as_mut_ptr(), count);
        _mm_loadu_si128(halves.as_ptr().cast())
    }
}

#[inline(always)]
unsafe fn store_halves<T>(to: *mut T, vector: __m128i, count: usize) {
    let mut halves = [0u16; 8];
    // SAFETY: the caller vouches for `count < 8` elements of two bytes.
    unsafe {
        if count == 4 {
            return _mm_storel_epi64(to.cast(), vector);
        }
        _mm_storeu_si128(halves.as_mut_ptr().cast(), vector);
        std::ptr::copy_nonoverlapping(halves.as_ptr(), to.cast::<u16>(), count);
    }
}

/// The first `count < 8` floats; the others are zero.
#[inline(always)]
unsafe fn load_floats(from: *const f32, count: usize) -> __m256 {
    // SAFETY: the caller vouches for `count` elements.
    unsafe {
        if count > 4 {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(from));
            _mm256_insertf128_ps::<1>(low, load_four(from.add(4), count - 4))
        } else {
            _mm256_zextps128_ps256(load_four(from, count))
        }
    }
}

/// Stores the first `count < 8` floats.
#[inline(always)]
unsafe fn store_floats(to: *mut f32, vector: __m256, count: usize) {
    // SAFETY: the caller vouches for `count` elements.
    unsafe {
        let low = _mm256_castps256_ps128(vector);
        if count > 4 {
            _mm_storeu_ps(to, low);
            store_four(to.add(4), _mm256_extractf128_ps::<1>(vector), count - 4);
        } else {
            store_four(to, low, count);
        }
    }
}

impl Simd for Avx2 {
    type Vector = __m256;

    const LANES: usize = 8;
    const FUSED: bool = true;

    #[inline(always)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sum_each([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe {
            let abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }

    #[inline(always)]
    unsafe fn load<T: Storage>(from: *const T) -> __m256 {
        // SAFETY: the caller vouches for eight elements.
        unsafe {
            if T::IS_HALF {
                widened::<T>(_mm_loadu_si128(from.cast()))
            } else {
                _mm256_loadu_ps(from.cast())
            }
        }
    }
    #[inline(always)]
    unsafe fn load_first<T: Storage>(from: *const T, count: usize) -> __m256 {
        // SAFETY: the caller vouches for the first `count` elements.
        unsafe {
            if T::IS_HALF {
                widened::<T>(load_halves(from, count))
            } else {
                load_floats(from.cast(), count)
            }
        }
    }
    #[inline(always)]
    unsafe fn store<T: Storage>(to: *mut T, vector: __m256) {
        // SAFETY: the caller vouches for eight elements.
        unsafe {
            if T::IS_HALF {
                _mm_storeu_si128(to.cast(), narrowed::<T>(vector));
            } else {
                _mm256_storeu_ps(to.cast(), vector);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_first<T: Storage>(to: *mut T, vector: __m256, count: usize) {
        // SAFETY: the caller vouches for the first `count` elements.
        unsafe {
            if T::IS_HALF {
                store_halves(to, narrowed::<T>(vector), count);
            } else {
                store_floats(to.cast(), vector, count);
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<T: Storage>(to: *mut T, vector: __m256) {
        // SAFETY: the caller vouches for eight elements and their alignment.
        unsafe {
            if T::IS_HALF {
                _mm_stream_si128(to.cast(), narrowed::<T>(vector));
            } else {
                _mm256_stream_ps(to.cast(), vector);
            }
        }
    }
    #[inline(always)]
    unsafe fn stream_end() {
        // SAFETY: a fence has no precondition beyond SSE.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    fn prefetch<T>(address: *const T) {
        // SAFETY: a prefetch never faults, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}

/// Halves of the dtype `T` as floats.
#[inline(always)]
unsafe fn widened<T: Storage>(halves: __m128i) -> __m256 {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        match T::DTYPE {
            DType::F16 => _mm256_cvtph_ps(halves),
            _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))),
        }
    }
}

/// Floats as halves of the dtype `T`.
#[inline(always)]
unsafe fn narrowed<T: Storage>(vector: __m256) -> __m128i {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        match T::DTYPE {
            DType::F16 => _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector),
            _ => to_bf16(vector),
        }
    }
}

/// Nearest even, NaN stays NaN.
#[inline(always)]
unsafe fn to_bf16(vector: __m256) -> __m128i {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        let bits = _mm256_castps_si256(vector);
        let upper = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(vector, vector));
        let chosen = _mm256_blendv_epi8(rounded, quiet, nan);
        // Packing works within 128-bit halves; the permutation puts them side by side.
        let packed = _mm256_packus_epi32(chosen, chosen);
        _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00_10_00>(packed))
    }
}
