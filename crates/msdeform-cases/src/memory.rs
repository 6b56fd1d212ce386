//! Buffers with poison on both sides, so that whoever leaves them is found.

use std::fmt;

use msdeform::{DType, Element, TensorView, TensorViewMut};

use crate::case::{Case, Wants};
use crate::tensors::{Inputs, POISON};

/// A tensor of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tensor {
    /// `[N, S, M, D]` or head-major.
    Value,
    /// `[N, Lq, M, samples, 2]`.
    Locations,
    /// `[N, Lq, M, samples]`.
    Weights,
    /// The gradient of the output.
    Upstream,
    /// `[N, Lq, M * D]`.
    Output,
    /// Packed, in the layout of the values.
    GradValue,
    /// Like the locations.
    GradLocations,
    /// Like the weights.
    GradWeights,
    /// What steps of a call share.
    Workspace,
}

impl Tensor {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Locations => "locations",
            Self::Weights => "weights",
            Self::Upstream => "grad_output",
            Self::Output => "output",
            Self::GradValue => "grad_value",
            Self::GradLocations => "grad_locations",
            Self::GradWeights => "grad_weights",
            Self::Workspace => "workspace",
        }
    }

    /// Whether a call writes it.
    #[must_use]
    pub const fn is_written(self) -> bool {
        !matches!(self, Self::Value | Self::Locations | Self::Weights | Self::Upstream)
    }

    /// Its storage format in a case.
    #[must_use]
    pub fn dtype(self, case: &Case) -> DType {
        match self {
            Self::Value | Self::Upstream | Self::Output | Self::GradValue => case.problem.dtype(),
            _ => case.problem.sampling_dtype(),
        }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Poison on each side of a buffer: more than a block of threads would overrun it by at once.
const GUARD_BYTES: usize = 1024;
/// What the offset of a buffer counts from.
const BASE_BYTES: usize = 256;

/// A buffer inside poison.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// Which tensor it is.
    pub tensor: Tensor,
    // Not bytes: typed views need their alignment.
    words: Vec<u64>,
    first: usize,
    len: usize,
}

/// A write beside a buffer, or into one that is only read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tensor} was written {place}")]
pub struct Trespass {
    tensor: Tensor,
    place: String,
}

impl Guarded {
    /// `len` bytes of poison, `offset` bytes behind a multiple of 256.
    #[must_use]
    pub fn poisoned(tensor: Tensor, len: usize, offset: usize) -> Self {
        let first = GUARD_BYTES + offset;
        let bytes = (first + len + GUARD_BYTES).next_multiple_of(BASE_BYTES);
        let word = u64::from_ne_bytes([POISON; 8]);
        Self { tensor, words: vec![word; bytes / 8], first, len }
    }

    /// A copy of these bytes.
    #[must_use]
    pub fn holding(tensor: Tensor, bytes: &[u8], offset: usize) -> Self {
        let mut buffer = Self::poisoned(tensor, bytes.len(), offset);
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    /// What belongs to the tensor.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.first..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.first..][..self.len]
    }

    /// Everything, in words: to be copied elsewhere and back.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Everything, to be replaced by what came back.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Bytes from the first word to the first element.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first
    }

    /// A view of it as the processor's calls take it.
    #[must_use]
    pub fn view(&self, dtype: DType) -> TensorView<'_> {
        let bytes = self.bytes();
        match dtype {
            DType::F32 => TensorView::from(bytemuck::cast_slice::<u8, f32>(bytes)),
            DType::F16 => TensorView::from(bytemuck::cast_slice::<u8, half::f16>(bytes)),
            DType::Bf16 => TensorView::from(bytemuck::cast_slice::<u8, half::bf16>(bytes)),
            DType::F64 => TensorView::from(bytemuck::cast_slice::<u8, f64>(bytes)),
        }
    }

    /// A view that may be written.
    pub fn view_mut(&mut self, dtype: DType) -> TensorViewMut<'_> {
        let bytes = self.bytes_mut();
        match dtype {
            DType::F32 => TensorViewMut::from(bytemuck::cast_slice_mut::<u8, f32>(bytes)),
            DType::F16 => TensorViewMut::from(bytemuck::cast_slice_mut::<u8, half::f16>(bytes)),
            DType::Bf16 => TensorViewMut::from(bytemuck::cast_slice_mut::<u8, half::bf16>(bytes)),
            DType::F64 => TensorViewMut::from(bytemuck::cast_slice_mut::<u8, f64>(bytes)),
        }
    }

    /// Fails if anything around the buffer was written, or, where `before` is given, anything in it.
    ///
    /// # Errors
    /// Where.
    pub fn check(&self, before: Option<&[u8]>) -> Result<(), Trespass> {
        let all: &[u8] = bytemuck::cast_slice(&self.words);
        let trespass = |place: String| Err(Trespass { tensor: self.tensor, place });
        let is_hit = |byte: &u8| *byte != POISON;
        if let Some(at) = all[..self.first].iter().rposition(is_hit) {
            return trespass(format!("{} bytes before its start", self.first - at));
        }
        if let Some(at) = all[self.first + self.len..].iter().position(is_hit) {
            return trespass(format!("{at} bytes behind its end"));
        }
        let differs = |before: &[u8]| self.bytes().iter().zip(before).position(|(a, b)| a != b);
        match before.and_then(differs) {
            Some(at) => trespass(format!("at byte {at}, though it is only read")),
            None => Ok(()),
        }
    }
}

/// Elements before a tensor's first one.
fn offset(case: &Case, tensor: Tensor) -> usize {
    let offsets = case.offsets;
    match tensor {
        Tensor::Value => offsets.value,
        Tensor::Locations => offsets.locations,
        Tensor::Weights => offsets.weights,
        Tensor::Upstream => offsets.upstream,
        Tensor::Output | Tensor::GradValue => offsets.first,
        Tensor::GradLocations => offsets.grad_locations,
        Tensor::GradWeights => offsets.grad_weights,
        Tensor::Workspace => 0,
    }
}

/// The tensors that a call reads and writes, in this order: inputs, then what is written.
#[must_use]
pub fn tensors(case: &Case) -> Vec<Tensor> {
    let mut tensors = vec![Tensor::Value, Tensor::Locations, Tensor::Weights];
    match case.wants {
        Wants::Output => tensors.push(Tensor::Output),
        Wants::Gradients(gradients) => {
            tensors.push(Tensor::Upstream);
            let asked = [
                (gradients.value, Tensor::GradValue),
                (gradients.locations, Tensor::GradLocations),
                (gradients.weights, Tensor::GradWeights),
            ];
            tensors.extend(asked.into_iter().filter_map(|(asked, t)| asked.then_some(t)));
        }
    }
    tensors
}

/// Bytes before a tensor's first element, from a multiple of 256.
#[must_use]
pub fn offset_bytes(case: &Case, tensor: Tensor) -> usize {
    offset(case, tensor) * tensor.dtype(case).size_bytes()
}

/// Bytes of a tensor that is written.
#[must_use]
pub fn written_bytes(case: &Case, tensor: Tensor) -> usize {
    let problem = &case.problem;
    let elements = match tensor {
        Tensor::Output => problem.output_len(),
        Tensor::GradValue => problem.value_len(),
        Tensor::GradLocations => problem.locations_len(),
        Tensor::GradWeights => problem.weights_len(),
        _ => 0,
    };
    elements * tensor.dtype(case).size_bytes()
}

/// Buffers for the tensors of a case: inputs filled, the others poisoned.
#[must_use]
pub fn buffers(case: &Case, inputs: &Inputs) -> Vec<Guarded> {
    let buffer = |tensor: Tensor| {
        let offset = offset_bytes(case, tensor);
        match inputs.of(tensor) {
            Some(input) => Guarded::holding(tensor, &input.bytes, offset),
            None => Guarded::poisoned(tensor, written_bytes(case, tensor), offset),
        }
    };
    tensors(case).into_iter().map(buffer).collect()
}

/// Checks the surroundings of all buffers and that inputs are what they were; returns what was written.
///
/// # Errors
/// The first trespass.
pub fn collect(buffers: &[Guarded], inputs: &Inputs) -> Result<Vec<Vec<u8>>, Trespass> {
    let mut written = Vec::new();
    for buffer in buffers {
        buffer.check(inputs.of(buffer.tensor).map(|input| &input.bytes[..]))?;
        if buffer.tensor.is_written() && buffer.tensor != Tensor::Workspace {
            written.push(buffer.bytes().to_vec());
        }
    }
    Ok(written)
}

/// The Rust type of a format has its size: what the views above rely on.
const _: () = {
    assert!(size_of::<half::f16>() == 2 && <half::f16 as Element>::DTYPE.size_bytes() == 2);
    assert!(size_of::<f32>() == 4 && <f32 as Element>::DTYPE.size_bytes() == 4);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_beside_a_buffer_is_found_and_one_inside_is_not() {
        let mut buffer = Guarded::poisoned(Tensor::Output, 12, 2);
        buffer.bytes_mut().fill(7);
        buffer.check(None).unwrap();
        for (at, place) in [(1025, "1 bytes before"), (1038, "0 bytes behind")] {
            let mut hit = buffer.clone();
            bytemuck::cast_slice_mut::<u64, u8>(hit.words_mut())[at] = 0;
            let error = hit.check(None).unwrap_err().to_string();
            assert!(error.contains("output was written") && error.contains(place), "{error}");
        }
    }

    #[test]
    fn an_input_that_changed_is_found() {
        let mut buffer = Guarded::holding(Tensor::Value, &[1, 2, 3, 4], 0);
        buffer.check(Some(&[1, 2, 3, 4])).unwrap();
        buffer.bytes_mut()[2] = 9;
        let error = buffer.check(Some(&[1, 2, 3, 4])).unwrap_err().to_string();
        assert!(error.contains("value was written at byte 2"), "{error}");
    }
}
