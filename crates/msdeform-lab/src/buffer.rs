//! The only kind of memory for tensors: elements between guards, as aligned as PyTorch's.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};
use msdeform::{DType, Element, TensorView, TensorViewMut};

/// A byte that is part of a NaN in every dtype. It fills the guards, and outputs before a run.
const POISON: u8 = 0xFF;
/// Poison on each side of the elements: more than a block of threads would overrun it by at once. Miri sees every single
/// access, and more of them the less there is around a buffer.
const GUARD_BYTES: usize = if cfg!(miri) { 64 } else { 1024 };
/// Elements begin at a multiple of this, plus an offset. A `Vec` begins somewhere inside of a cache line, another time at
/// another place, and a CPU takes up to 1.7 times as long, which would be measured instead of the kernel.
const ALIGNMENT: usize = 256;

/// The elements of one tensor, between guards that show writes outside of it.
#[derive(Debug)]
pub struct Buffer {
    dtype: DType,
    /// Not bytes: typed views need their alignment.
    words: Vec<u64>,
    /// Words before the first multiple of [`ALIGNMENT`].
    lead: usize,
    /// Bytes from there to the first element.
    first: usize,
    /// Bytes of all elements.
    len: usize,
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
    ($($type:ty)*) => {$(
        impl From<Vec<$type>> for Buffer {
            fn from(elements: Vec<$type>) -> Self {
                Self::holding(<$type>::DTYPE, cast_slice(&elements), 0)
            }
        }
    )*};
}

from_elements! { f32 f16 bf16 f64 }

impl Buffer {
    pub(crate) const EMPTY: Self =
        Self { dtype: DType::F32, words: Vec::new(), lead: 0, first: 0, len: 0 };

    /// `len` NaNs: what a kernel does not write must not pass for a result.
    pub fn poisoned(dtype: DType, len: usize) -> Self {
        Self::poisoned_bytes(dtype, len * dtype.size_bytes(), 0)
    }

    /// NaN in so many bytes, `offset` bytes behind a multiple of 256.
    pub(crate) fn poisoned_bytes(dtype: DType, len: usize, offset: usize) -> Self {
        let first = GUARD_BYTES + offset;
        let image = (first + len + GUARD_BYTES).next_multiple_of(ALIGNMENT);
        let words = vec![u64::from_ne_bytes([POISON; 8]); (image + ALIGNMENT) / 8];
        let at = words.as_ptr().addr();
        let lead = (at.next_multiple_of(ALIGNMENT) - at) / 8;
        Self { dtype, words, lead, first, len }
    }

    /// A copy of these bytes, `offset` bytes behind a multiple of 256.
    pub(crate) fn holding(dtype: DType, bytes: &[u8], offset: usize) -> Self {
        let mut buffer = Self::poisoned_bytes(dtype, bytes.len(), offset);
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    pub fn from_numbers(dtype: DType, numbers: &[f64]) -> Self {
        let mut buffer = Self::poisoned(dtype, numbers.len());
        for_dtype!(dtype, T => {
            for (to, from) in buffer.elements_mut::<T>().iter_mut().zip(numbers) {
                *to = T::from_f64(*from);
            }
        });
        buffer
    }

    /// The elements in little-endian bytes.
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Self {
        let whole = bytes.len() / dtype.size_bytes() * dtype.size_bytes();
        Self::holding(dtype, &bytes[..whole], 0)
    }

    pub fn converted(self, dtype: DType) -> Self {
        if self.dtype == dtype {
            return self;
        }
        let mut converted = Self::poisoned(dtype, self.len());
        for_dtype!(self.dtype, From => for_dtype!(dtype, To => {
            let pairs = converted.elements_mut::<To>().iter_mut().zip(self.elements::<From>());
            pairs.for_each(|(to, from)| *to = To::from_f64(from.to_f64()));
        }));
        converted
    }

    pub(crate) fn poison(&mut self) {
        self.bytes_mut().fill(POISON);
    }

    /// Rows of `len` elements, picked by their index.
    pub fn gather(&self, len: usize, rows: impl Iterator<Item = usize>) -> Self {
        let (len, mut gathered) = (len * self.dtype.size_bytes(), Vec::new());
        rows.for_each(|row| gathered.extend_from_slice(&self.bytes()[row * len..][..len]));
        Self::holding(self.dtype, &gathered, 0)
    }

    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    pub const fn len(&self) -> usize {
        self.len / self.dtype.size_bytes()
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, if `T` is their type.
    pub fn elements<T: Element + Pod>(&self) -> &[T] {
        debug_assert_eq!(T::DTYPE, self.dtype);
        cast_slice(self.bytes())
    }

    pub(crate) fn elements_mut<T: Element + Pod>(&mut self) -> &mut [T] {
        debug_assert_eq!(T::DTYPE, self.dtype);
        cast_slice_mut(self.bytes_mut())
    }

    pub fn view(&self) -> TensorView<'_> {
        for_dtype!(self.dtype, T => TensorView::from(self.elements::<T>()))
    }

    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        for_dtype!(self.dtype, T => TensorViewMut::from(self.elements_mut::<T>()))
    }

    pub fn to_f64(&self) -> Vec<f64> {
        for_dtype!(self.dtype, T => self.elements::<T>().iter().map(|x| x.to_f64()).collect())
    }

    /// How many elements are NaN, and how many infinite.
    pub fn count_not_finite(&self) -> (usize, usize) {
        for_dtype!(self.dtype, T => self.elements::<T>().iter().fold((0, 0), |(nan, infinite), x| {
            let x = x.to_f64();
            (nan + usize::from(x.is_nan()), infinite + usize::from(x.is_infinite()))
        }))
    }

    /// The elements as little-endian bytes, for files, hashes and comparisons of bits.
    pub fn bytes(&self) -> &[u8] {
        &cast_slice(self.image())[self.first..][..self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (first, len) = (self.first, self.len);
        &mut cast_slice_mut(self.image_mut())[first..][..len]
    }

    /// The elements and their guards, from a multiple of 256 bytes, to be copied elsewhere and back.
    pub(crate) fn image(&self) -> &[u64] {
        let trail = ALIGNMENT / 8 - self.lead;
        &self.words[self.lead..self.words.len().saturating_sub(trail)]
    }

    pub(crate) fn image_mut(&mut self) -> &mut [u64] {
        let end = self.words.len() - (ALIGNMENT / 8 - self.lead);
        &mut self.words[self.lead..end]
    }

    /// Bytes from the first word of the image to the first element.
    pub(crate) const fn first(&self) -> usize {
        self.first
    }

    /// Where the guards were written, if they were.
    pub(crate) fn trespass(&self) -> Option<String> {
        let all: &[u8] = cast_slice(self.image());
        let (ahead, behind) = (&all[..self.first], &all[self.first + self.len..]);
        let is_hit = |byte: &u8| *byte != POISON;
        if !is_poison(ahead) {
            let at = ahead.iter().rposition(is_hit)?;
            return Some(format!("{} bytes before its start", self.first - at));
        }
        if is_poison(behind) {
            return None;
        }
        Some(format!("{} bytes behind its end", behind.iter().position(is_hit)?))
    }
}

/// Whether all bytes are poison. Whole slices are compared: byte by byte this was half of the time of a test in Miri.
fn is_poison(bytes: &[u8]) -> bool {
    const BAND: [u8; 256] = [POISON; 256];
    bytes.chunks(BAND.len()).all(|chunk| *chunk == BAND[..chunk.len()])
}

/// A copy begins at a multiple of 256 bytes, too.
impl Clone for Buffer {
    fn clone(&self) -> Self {
        let offset = self.first.saturating_sub(GUARD_BYTES);
        Self::holding(self.dtype, self.bytes(), offset)
    }
}

/// Whether every bit is the same.
impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.bytes() == other.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_those_that_were_given_and_begin_where_they_should() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let given: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let buffer = Buffer::from(given.clone());
            assert_eq!(buffer.elements::<f32>(), given);
            let numbers = buffer.to_f64();
            let narrow = buffer.clone().converted(DType::F16);
            assert_eq!(narrow, Buffer::from_numbers(DType::F16, &numbers));
            for one in [&buffer, &buffer.clone(), &narrow] {
                assert!(one.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
                assert_eq!((one.len(), one.trespass()), (len, None));
            }
            let moved = Buffer::holding(DType::F32, buffer.bytes(), 12);
            assert_eq!(moved.bytes().as_ptr().addr() % ALIGNMENT, 12);
            assert_eq!((&moved, moved.clone().first()), (&buffer, moved.first()));
        }
        assert!(Buffer::EMPTY.is_empty() && Buffer::EMPTY.to_f64().is_empty());
        assert_eq!(Buffer::poisoned(DType::Bf16, 9).count_not_finite(), (9, 0));
    }

    #[test]
    fn a_write_outside_of_a_buffer_is_found() {
        let mut buffer = Buffer::poisoned_bytes(DType::F16, 12, 2);
        buffer.bytes_mut().fill(7);
        assert_eq!(buffer.trespass(), None);
        let (before, behind) = (GUARD_BYTES + 1, GUARD_BYTES + 14);
        for (at, place) in [(before, "1 bytes before"), (behind, "0 bytes behind")] {
            let mut hit = buffer.clone();
            cast_slice_mut::<u64, u8>(hit.image_mut())[at] = 0;
            assert!(hit.trespass().unwrap().contains(place));
        }
    }
}
