//! Memory whose place is not left to chance.

#![allow(unsafe_code, reason = "lines of memory are read as numbers")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use msdeform::Element;

/// Bytes of a cache line.
const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(
    #[allow(dead_code, reason = "only reached through the pointer to the first line")] [u8; LINE],
);

const ZERO: Line = Line([0; LINE]);

/// Elements that begin at a cache line, as PyTorch's tensors do. A `Vec` begins somewhere inside of one, another time at
/// another place, and takes a processor up to 1.7 times as long: that would be measured, and not the kernel.
#[derive(Clone)]
pub struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Aligned<T> {
    const PER_LINE: usize = LINE / size_of::<T>();

    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { lines: Vec::new(), len: 0, elements: PhantomData }
    }

    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![ZERO; len.div_ceil(Self::PER_LINE)], len, elements: PhantomData }
    }

    /// `len` times the same.
    #[must_use]
    pub fn filled(with: T, len: usize) -> Self {
        let mut filled = Self::zeroed(len);
        filled.fill(with);
        filled
    }
}

impl<T: Element> Default for Aligned<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines are that long, aligned for any element, and every bit pattern is one.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the lines are borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl<T: Element> FromIterator<T> for Aligned<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let elements = elements.into_iter();
        let mut found = Self::new();
        found.lines.reserve(elements.size_hint().0.div_ceil(Self::PER_LINE));
        for element in elements {
            if found.len == found.lines.len() * Self::PER_LINE {
                found.lines.push(ZERO);
            }
            found.len += 1;
            let last = found.len - 1;
            found[last] = element;
        }
        found
    }
}

impl<T: Element> From<Vec<T>> for Aligned<T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Element + PartialEq> PartialEq for Aligned<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Aligned<T> {
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
            assert_eq!(aligned, given.into_iter().collect());
            for address in [aligned.as_ptr().addr(), aligned.clone().as_ptr().addr()] {
                assert!(address.is_multiple_of(LINE), "{address}");
            }
        }
        let filled = Aligned::filled(f16::ONE, 33);
        assert!(filled.len() == 33 && filled.iter().all(|&x| x == f16::ONE));
        assert!(
            Aligned::<f64>::zeroed(9).iter().all(|&x| x == 0.0) && Aligned::<f64>::new().is_empty()
        );
    }
}
