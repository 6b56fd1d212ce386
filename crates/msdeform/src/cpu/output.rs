//! The output and its gradient: rows in the values' dtype, or in `f32` with values of half precision.

use super::placement::prefetch;
use super::simd::{Simd, Storage};
use crate::view::Expected;
use crate::{Error, TensorView, TensorViewMut};

/// The output, to be written, or its gradient, which is only read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output<T> {
    LikeValues(*mut T),
    Single(*mut f32),
}

impl<T: Storage> Output<T> {
    /// A checked output.
    pub(crate) fn of(view: TensorViewMut<'_>, expected: &Expected) -> Result<Self, Error> {
        Ok(if expected.dtype == T::DTYPE {
            Self::LikeValues(view.elements::<T>(expected)?.as_mut_ptr())
        } else {
            Self::Single(view.elements::<f32>(expected)?.as_mut_ptr())
        })
    }

    /// A checked gradient.
    pub(crate) fn gradient(view: TensorView<'_>, expected: &Expected) -> Result<Self, Error> {
        Ok(if expected.dtype == T::DTYPE {
            Self::LikeValues(view.elements::<T>(expected)?.as_ptr().cast_mut())
        } else {
            Self::Single(view.elements::<f32>(expected)?.as_ptr().cast_mut())
        })
    }

    /// Asks for `count` elements from `offset` on.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, offset: usize, count: usize) {
        match self {
            Self::LikeValues(at) => prefetch::<S, T>(at.wrapping_add(offset), count),
            Self::Single(at) => prefetch::<S, f32>(at.wrapping_add(offset), count),
        }
    }

    /// Stores the first `count` lanes from `offset` on.
    ///
    /// # Safety
    /// They lie inside of the output, nothing else uses them, and the machine has `S`.
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
            S::store_first(to, vector, count);
        } else {
            S::store(to, vector);
        }
    }
}

/// # Safety
/// `from` is valid for `count` elements, and the machine has `S`.
#[inline(always)]
unsafe fn load<S: Simd, T: Storage>(from: *const T, count: usize) -> S::Vector {
    // SAFETY: passed on.
    unsafe { if count < S::LANES { S::load_first(from, count) } else { S::load(from) } }
}
