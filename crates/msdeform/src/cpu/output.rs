//! The output and its gradient: rows in the values' dtype, or in `f32` with values of half precision.

use super::placement::prefetch;
use super::simd::{Simd, Storage};

/// The output, to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output<T> {
    LikeValues(*mut T),
    Single(*mut f32),
}

/// The gradient of the output, to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GradOutput<T> {
    LikeValues(*const T),
    Single(*const f32),
}

impl<T: Storage> Output<T> {
    /// Asks for `count` elements from `offset` on.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, offset: usize, count: usize) {
        match self {
            Self::LikeValues(to) => prefetch::<S, T>(to.wrapping_add(offset), count),
            Self::Single(to) => prefetch::<S, f32>(to.wrapping_add(offset), count),
        }
    }

    /// Stores the first `count` lanes from `offset` on.
    ///
    /// # Safety
    /// They lie inside of the tensor, nothing else uses them, and the machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(self, offset: usize, vector: S::Vector, count: usize) {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::LikeValues(to) => store::<S, T>(to.add(offset), vector, count),
                Self::Single(to) => store::<S, f32>(to.add(offset), vector, count),
            }
        }
    }
}

impl<T: Storage> GradOutput<T> {
    /// Asks for `count` elements from `offset` on.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, offset: usize, count: usize) {
        match self {
            Self::LikeValues(from) => prefetch::<S, T>(from.wrapping_add(offset), count),
            Self::Single(from) => prefetch::<S, f32>(from.wrapping_add(offset), count),
        }
    }

    /// Loads `count` elements from `offset` on; the lanes behind them are zero.
    ///
    /// # Safety
    /// They lie inside of the tensor, and the machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd>(self, offset: usize, count: usize) -> S::Vector {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::LikeValues(from) => load::<S, T>(from.add(offset), count),
                Self::Single(from) => load::<S, f32>(from.add(offset), count),
            }
        }
    }
}

/// # Safety
/// `to` is valid for `count` elements, and the machine has `S`.
#[inline(always)]
unsafe fn store<S: Simd, T: Storage>(to: *mut T, vector: S::Vector, count: usize) {
    // SAFETY: passed on.
    unsafe {
        if count < S::LANES {
            T::store_first::<S>(to, vector, count);
        } else {
            T::store::<S>(to, vector);
        }
    }
}

/// # Safety
/// `from` is valid for `count` elements, and the machine has `S`.
#[inline(always)]
unsafe fn load<S: Simd, T: Storage>(from: *const T, count: usize) -> S::Vector {
    // SAFETY: passed on.
    unsafe { if count < S::LANES { T::load_first::<S>(from, count) } else { T::load::<S>(from) } }
}
