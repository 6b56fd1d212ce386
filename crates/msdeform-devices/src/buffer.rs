//! Owned tensors of any dtype.

use bytemuck::pod_read_unaligned;
use half::{bf16, f16};
use msdeform::{DType, Element, TensorView, TensorViewMut};

use crate::Aligned;

/// The elements of one tensor.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "one variant per DType, named like it")]
pub enum Buffer {
    F32(Aligned<f32>),
    F16(Aligned<f16>),
    Bf16(Aligned<bf16>),
    F64(Aligned<f64>),
}

/// Runs an expression on the elements of a buffer, with their type.
macro_rules! each {
    ($buffer:expr, $elements:ident => $body:expr) => {
        match $buffer {
            Buffer::F32($elements) => $body,
            Buffer::F16($elements) => $body,
            Buffer::Bf16($elements) => $body,
            Buffer::F64($elements) => $body,
        }
    };
}

/// Runs an expression with the type of a dtype's elements.
macro_rules! for_dtype {
    ($dtype:expr, $type:ident => $body:expr) => {{
        macro_rules! with {
            ($of:ty) => {{
                type $type = $of;
                $body
            }};
        }
        match $dtype {
            msdeform::DType::F32 => with!(f32),
            msdeform::DType::F16 => with!(half::f16),
            msdeform::DType::Bf16 => with!(half::bf16),
            msdeform::DType::F64 => with!(f64),
        }
    }};
}
pub(crate) use for_dtype;

macro_rules! from_elements {
    ($($type:ty => $variant:ident)*) => {$(
        impl From<Aligned<$type>> for Buffer {
            fn from(elements: Aligned<$type>) -> Self {
                Self::$variant(elements)
            }
        }
    )*};
}

from_elements! { f32 => F32  f16 => F16  bf16 => Bf16  f64 => F64 }

impl Buffer {
    /// The nearest values of a dtype.
    #[must_use]
    pub fn from_numbers(dtype: DType, numbers: &[f64]) -> Self {
        for_dtype!(dtype, T => numbers.iter().map(|&x| T::from_f64(x)).collect::<Aligned<T>>().into())
    }

    /// The elements in little-endian bytes.
    #[must_use]
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Self {
        for_dtype!(dtype, T => {
            let elements = bytes.chunks_exact(size_of::<T>());
            elements.map(pod_read_unaligned::<T>).collect::<Aligned<T>>().into()
        })
    }

    /// A buffer of `len` NaNs: what a kernel does not write must not pass for a result.
    #[must_use]
    pub fn poisoned(dtype: DType, len: usize) -> Self {
        for_dtype!(dtype, T => Aligned::filled(T::from_f64(f64::NAN), len).into())
    }

    /// The nearest values of another dtype.
    #[must_use]
    pub fn converted(self, dtype: DType) -> Self {
        if self.dtype() == dtype {
            return self;
        }
        each!(&self, elements => for_dtype!(dtype, T => {
            elements.iter().map(|x| T::from_f64(x.to_f64())).collect::<Aligned<T>>().into()
        }))
    }

    /// Fills the buffer with NaN.
    pub fn poison(&mut self) {
        fn fill<T: Element>(elements: &mut [T]) {
            elements.fill(T::from_f64(f64::NAN));
        }
        each!(self, elements => fill(elements));
    }

    /// Rows of `len` elements, picked by their index.
    #[must_use]
    pub fn gather(&self, len: usize, rows: impl Iterator<Item = usize>) -> Self {
        each!(self, elements => {
            let rows = rows.flat_map(|row| elements[row * len..][..len].iter().copied());
            rows.collect::<Aligned<_>>().into()
        })
    }

    /// The dtype of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::F64(_) => DType::F64,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(self, elements => elements.len())
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements to read.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        each!(self, elements => TensorView::from(&**elements))
    }

    /// The elements to write.
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        each!(self, elements => TensorViewMut::from(&mut **elements))
    }

    /// Every element, exactly.
    #[must_use]
    pub fn to_f64(&self) -> Vec<f64> {
        each!(self, elements => elements.iter().map(|x| x.to_f64()).collect())
    }

    /// How many elements are NaN, and how many infinite.
    #[must_use]
    pub fn count_not_finite(&self) -> (usize, usize) {
        each!(self, elements => elements.iter().fold((0, 0), |(nan, infinite), x| {
            let x = x.to_f64();
            (nan + usize::from(x.is_nan()), infinite + usize::from(x.is_infinite()))
        }))
    }

    /// The elements as little-endian bytes, for files and hashes.
    #[must_use]
    pub fn to_le_bytes(&self) -> Vec<u8> {
        each!(self, elements => elements.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}
