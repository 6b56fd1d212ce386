//! Memory whose place is not left to chance.

use std::fmt;
use std::ops::{Deref, DerefMut};

use msdeform::Element;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Elements that begin at a cache line, as PyTorch's tensors do. A `Vec` begins somewhere inside of one, another time at
/// another place, and a CPU takes up to 1.7 times as long, which would be measured instead of the kernel.
pub struct Aligned<T> {
    /// With as many before the first one as lie in front of a line.
    elements: Vec<T>,
    start: usize,
}

impl<T: Element> Aligned<T> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { elements: Vec::new(), start: 0 }
    }

    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::filled(T::default(), len)
    }

    /// `len` times the same.
    #[must_use]
    pub fn filled(with: T, len: usize) -> Self {
        std::iter::repeat_n(with, len).collect()
    }
}

impl<T: Element> FromIterator<T> for Aligned<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let elements = elements.into_iter();
        let room = elements.size_hint().0 + LINE / size_of::<T>();
        let mut found: Vec<T> = Vec::with_capacity(room);
        let start = found.as_ptr().align_offset(LINE);
        found.resize(start, T::default());
        found.extend(elements);
        // It moved if there were more elements than the lower bound.
        let is_in_place = found[start..].as_ptr().addr().is_multiple_of(LINE);
        if is_in_place { Self { elements: found, start } } else { found.drain(start..).collect() }
    }
}

impl<T: Element> Default for Aligned<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> From<Vec<T>> for Aligned<T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Element> Clone for Aligned<T> {
    fn clone(&self) -> Self {
        self.iter().copied().collect()
    }
}

impl<T: Element> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements[self.start..]
    }
}

impl<T: Element> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements[self.start..]
    }
}

impl<T: Element + PartialEq> PartialEq for Aligned<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Element> fmt::Debug for Aligned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn elements_begin_at_a_line_and_are_those_that_were_given() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let given: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let aligned = Aligned::from(given.clone());
            assert_eq!(*aligned, *given);
            // A filter does not know its length.
            let grown: Aligned<f32> = given.into_iter().filter(|_| true).collect();
            assert_eq!(aligned, grown);
            for place in [aligned.as_ptr(), aligned.clone().as_ptr(), grown.as_ptr()] {
                assert!(place.addr().is_multiple_of(LINE), "{place:?}");
            }
        }
        let filled = Aligned::filled(f16::ONE, 33);
        assert!(filled.len() == 33 && filled.iter().all(|&x| x == f16::ONE));
        let none = Aligned::<f64>::new();
        assert!(Aligned::<f64>::zeroed(9).iter().all(|&x| x == 0.0) && none.is_empty());
    }
}
