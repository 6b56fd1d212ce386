//! Tensor maps for the emulated copy engine.

use crate::{EmulatorError, Fault};

/// Bytes of a tensor map, as of the driver's `CUtensorMap`; inside of parameters it must be aligned to
/// 64.
pub const TENSOR_MAP_BYTES: usize = 128;

/// `TensorMap::expected_magic` in `cpp/runtime.hpp`.
const MAGIC: u64 = 0x4d53_4441_5445_4e53;

/// A tensor in device memory and the box that one copy moves, innermost dimension first. No swizzle, no
/// interleave, element stride 1, zeros outside, as the kernels of this project use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element: a [`crate::placeholder_address`], plus an offset.
    pub base: u64,
    /// Bytes of one element.
    pub element_bytes: u32,
    /// Elements along each dimension.
    pub size: Vec<u32>,
    /// Bytes from one element to the next along each dimension but the innermost.
    pub stride_bytes: Vec<u64>,
    /// Elements of the box along each dimension.
    pub box_size: Vec<u32>,
}

impl TensorMap {
    /// The bytes for a kernel's parameters, after the checks that the driver makes when it encodes a map.
    ///
    /// # Errors
    /// [`Fault::Request`] with the rule that is broken.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], EmulatorError> {
        let rank = self.size.len();
        let row_bytes = self.box_size.first().map_or(0, |&size| size * self.element_bytes);
        let broken = if !(1..=5).contains(&rank) {
            Some("a tensor has one to five dimensions")
        } else if self.box_size.len() != rank || self.stride_bytes.len() != rank - 1 {
            Some("one box size per dimension and one stride per outer dimension")
        } else if !matches!(self.element_bytes, 1 | 2 | 4 | 8) {
            Some("an element has 1, 2, 4 or 8 bytes")
        } else if !self.base.is_multiple_of(16)
            || !self.stride_bytes.iter().all(|stride| stride.is_multiple_of(16))
        {
            Some("the base address and all strides are multiples of 16")
        } else if !row_bytes.is_multiple_of(16) {
            Some("the innermost rows of a box have a multiple of 16 bytes")
        } else if self.size.contains(&0)
            || self.box_size.iter().any(|size| !(1..=256).contains(size))
        {
            Some("sizes are at least 1, those of the box at most 256")
        } else {
            None
        };
        if let Some(rule) = broken {
            let report = format!("{rule}: {self:?}");
            return Err(Fault::Request.of("a tensor map", report));
        }
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let mut at = 0;
        let mut put = |word: &[u8]| {
            bytes[at..at + word.len()].copy_from_slice(word);
            at += word.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.base.to_le_bytes());
        put(&(rank as u32).to_le_bytes());
        put(&self.element_bytes.to_le_bytes());
        for d in 0..4 {
            put(&self.stride_bytes.get(d).copied().unwrap_or(0).to_le_bytes());
        }
        for sizes in [&self.size, &self.box_size] {
            for d in 0..5 {
                put(&sizes.get(d).copied().unwrap_or(1).to_le_bytes());
            }
        }
        Ok(bytes)
    }
}
