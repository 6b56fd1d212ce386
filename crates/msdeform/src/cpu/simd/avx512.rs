//! AVX-512: sixteen lanes; tails by masks, so that no lane outside of a tensor is ever touched.

use std::arch::x86_64::*;

use super::{Simd, Storage};
use crate::DType;
use crate::cpu::isa::Kernel;

/// AVX-512 F, BW, DQ and VL: every AVX-512 server and every client since Ice Lake.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("fma")
}

/// # Safety
/// [`is_available`] holds.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { kernel.call::<Avx512>() }
}

// Tails are read and written in the narrowest vectors that hold them. A masked access waits for every cache line that the
// whole vector would reach, also for lines of masked lanes alone, which nothing has prefetched: on Zen 5 the loads of four
// samples a row took more than half of the time of `bevformer_tsa` in f32.

/// The mask of the first `count` lanes, at most eight.
#[inline(always)]
const fn first(count: usize) -> __mmask8 {
    ((1u32 << count) - 1) as __mmask8
}

/// The first `count <= 8` floats; the others are zero.
#[inline(always)]
unsafe fn load_eight(from: *const f32, count: usize) -> __m256 {
    // SAFETY: masked lanes are not read; the caller vouches for the others.
    unsafe {
        if count > 4 {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(from));
            _mm256_insertf128_ps::<1>(low, _mm_maskz_loadu_ps(first(count - 4), from.add(4)))
        } else {
            _mm256_zextps128_ps256(_mm_maskz_loadu_ps(first(count), from))
        }
    }
}

/// Stores the first `count <= 8` floats.
#[inline(always)]
unsafe fn store_eight(to: *mut f32, vector: __m256, count: usize) {
    // SAFETY: masked lanes are not written; the caller vouches for the others.
    unsafe {
        let low = _mm256_castps256_ps128(vector);
        if count > 4 {
            _mm_storeu_ps(to, low);
            let high = _mm256_extractf128_ps::<1>(vector);
            _mm_mask_storeu_ps(to.add(4), first(count - 4), high);
        } else {
            _mm_mask_storeu_ps(to, first(count), low);
        }
    }
}

/// The first `count < 16` halves; the others are zero.
#[inline(always)]
unsafe fn load_halves<T>(from: *const T, count: usize) -> __m256i {
    let from: *const i16 = from.cast();
    // SAFETY: masked lanes are not read; the caller vouches for the others.
    unsafe {
        if count > 8 {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(from.cast()));
            let high = _mm_maskz_loadu_epi16(first(count - 8), from.add(8));
            _mm256_inserti128_si256::<1>(low, high)
        } else if count == 4 {
            _mm256_zextsi128_si256(_mm_loadl_epi64(from.cast()))
        } else {
            _mm256_zextsi128_si256(_mm_maskz_loadu_epi16(first(count), from))
        }
    }
}

/// Stores the first `count < 16` halves.
#[inline(always)]
unsafe fn store_halves<T>(to: *mut T, vector: __m256i, count: usize) {
    let to: *mut i16 = to.cast();
    // SAFETY: masked lanes are not written; the caller vouches for the others.
    unsafe {
        let low = _mm256_castsi256_si128(vector);
        if count > 8 {
            _mm_storeu_si128(to.cast(), low);
            let high = _mm256_extracti128_si256::<1>(vector);
            _mm_mask_storeu_epi16(to.add(8), first(count - 8), high);
        } else if count == 4 {
            _mm_storel_epi64(to.cast(), low);
        } else {
            _mm_mask_storeu_epi16(to, first(count), low);
        }
    }
}

/// The first `count < 16` floats; the others are zero.
#[inline(always)]
unsafe fn load_floats(from: *const f32, count: usize) -> __m512 {
    // SAFETY: the caller vouches for `count` elements.
    unsafe {
        if count > 8 {
            let low = _mm512_castps256_ps512(_mm256_loadu_ps(from));
            _mm512_insertf32x8::<1>(low, load_eight(from.add(8), count - 8))
        } else {
            _mm512_zextps256_ps512(load_eight(from, count))
        }
    }
}

/// Stores the first `count < 16` floats.
#[inline(always)]
unsafe fn store_floats(to: *mut f32, vector: __m512, count: usize) {
    // SAFETY: the caller vouches for `count` elements.
    unsafe {
        let low = _mm512_castps512_ps256(vector);
        if count > 8 {
            _mm256_storeu_ps(to, low);
            store_eight(to.add(8), _mm512_extractf32x8_ps::<1>(vector), count - 8);
        } else {
            store_eight(to, low, count);
        }
    }
}

impl Simd for Avx512 {
    type Vector = __m512;

    const LANES: usize = 16;
    const FUSED: bool = true;

    #[inline(always)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sum_each([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // SAFETY: register arithmetic; the caller vouches for the instruction set.
        unsafe {
            // Each step halves the width of a sum and doubles the sums in a vector.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let high = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let abcd = _mm512_add_ps(low, high);
            let half =
                _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps::<1>(abcd));
            let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }

    #[inline(always)]
    unsafe fn load<T: Storage>(from: *const T) -> __m512 {
        // SAFETY: the caller vouches for sixteen elements.
        unsafe {
            if T::IS_HALF {
                widened::<T>(_mm256_loadu_si256(from.cast()))
            } else {
                _mm512_loadu_ps(from.cast())
            }
        }
    }
    #[inline(always)]
    unsafe fn load_first<T: Storage>(from: *const T, count: usize) -> __m512 {
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
    unsafe fn store<T: Storage>(to: *mut T, vector: __m512) {
        // SAFETY: the caller vouches for sixteen elements.
        unsafe {
            if T::IS_HALF {
                _mm256_storeu_si256(to.cast(), narrowed::<T>(vector));
            } else {
                _mm512_storeu_ps(to.cast(), vector);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_first<T: Storage>(to: *mut T, vector: __m512, count: usize) {
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
    unsafe fn stream<T: Storage>(to: *mut T, vector: __m512) {
        // SAFETY: the caller vouches for sixteen elements and their alignment.
        unsafe {
            if T::IS_HALF {
                _mm256_stream_si256(to.cast(), narrowed::<T>(vector));
            } else {
                _mm512_stream_ps(to.cast(), vector);
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
unsafe fn widened<T: Storage>(halves: __m256i) -> __m512 {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        match T::DTYPE {
            DType::F16 => _mm512_cvtph_ps(halves),
            _ => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))),
        }
    }
}

/// Floats as halves of the dtype `T`.
#[inline(always)]
unsafe fn narrowed<T: Storage>(vector: __m512) -> __m256i {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        match T::DTYPE {
            DType::F16 => {
                _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(vector)
            }
            _ => to_bf16(vector),
        }
    }
}

/// Nearest even in integers: the AVX-512 BF16 instruction would flush subnormals, and many machines
/// lack it.
#[inline(always)]
unsafe fn to_bf16(vector: __m512) -> __m256i {
    // SAFETY: register arithmetic; the caller vouches for the instruction set.
    unsafe {
        let bits = _mm512_castps_si512(vector);
        let upper = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
        let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(vector, vector);
        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet))
    }
}
