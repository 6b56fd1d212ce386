//! Owned tensors of any storage format.

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

/// Runs the same expression for whichever vector a buffer holds.
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

impl Buffer {
    /// The nearest values of a dtype.
    #[must_use]
    pub fn from_numbers(dtype: DType, numbers: &[f64]) -> Self {
        fn nearest<T: Element>(numbers: &[f64]) -> Aligned<T> {
            numbers.iter().map(|&number| T::from_f64(number)).collect()
        }
        match dtype {
            DType::F32 => Self::F32(nearest(numbers)),
            DType::F16 => Self::F16(nearest(numbers)),
            DType::Bf16 => Self::Bf16(nearest(numbers)),
            DType::F64 => Self::F64(nearest(numbers)),
        }
    }

    /// The elements in little-endian bytes.
    #[must_use]
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Self {
        fn elements<T: bytemuck::AnyBitPattern + Element>(bytes: &[u8]) -> Aligned<T> {
            let elements = bytes.chunks_exact(size_of::<T>());
            elements.map(bytemuck::pod_read_unaligned).collect()
        }
        match dtype {
            DType::F32 => Self::F32(elements(bytes)),
            DType::F16 => Self::F16(elements(bytes)),
            DType::Bf16 => Self::Bf16(elements(bytes)),
            DType::F64 => Self::F64(elements(bytes)),
        }
    }

    /// A buffer of `len` NaNs: what a kernel does not write must not pass for a result.
    #[must_use]
    pub fn poisoned(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(Aligned::filled(f32::NAN, len)),
            DType::F16 => Self::F16(Aligned::filled(f16::NAN, len)),
            DType::Bf16 => Self::Bf16(Aligned::filled(bf16::NAN, len)),
            DType::F64 => Self::F64(Aligned::filled(f64::NAN, len)),
        }
    }

    /// Fills the buffer with NaN.
    pub fn poison(&mut self) {
        fn fill<T: Element>(elements: &mut [T]) {
            elements.fill(T::from_f32(f32::NAN));
        }
        each!(self, elements => fill(elements));
    }

    /// Rows of `len` elements, picked by their index.
    #[must_use]
    pub fn gather(&self, len: usize, rows: impl Iterator<Item = usize>) -> Self {
        fn pick<T: Element>(
            elements: &[T],
            len: usize,
            rows: impl Iterator<Item = usize>,
        ) -> Aligned<T> {
            rows.flat_map(|row| elements[row * len..][..len].iter().copied()).collect()
        }
        match self {
            Self::F32(elements) => Self::F32(pick(elements, len, rows)),
            Self::F16(elements) => Self::F16(pick(elements, len, rows)),
            Self::Bf16(elements) => Self::Bf16(pick(elements, len, rows)),
            Self::F64(elements) => Self::F64(pick(elements, len, rows)),
        }
    }

    /// Storage format.
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

    /// Whether there are none.
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

    /// The elements as little-endian bytes, as files and hashes want them.
    #[must_use]
    pub fn to_le_bytes(&self) -> Vec<u8> {
        each!(self, elements => elements.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}
