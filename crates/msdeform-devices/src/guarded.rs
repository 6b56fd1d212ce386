//! Buffers with poison on both sides: a kernel that writes outside of its tensors is found.

use msdeform::{Access, DType, Role, TensorView, TensorViewMut};

use crate::HostTensors;
use crate::buffer::for_dtype;
use crate::case::Case;

/// A byte that is part of a NaN in every dtype.
const POISON: u8 = 0xFF;
/// Poison on each side of a buffer: more than a block of threads would overrun it by at once. Miri sees every single access,
/// and more of them the less there is around a buffer.
const GUARD_BYTES: usize = if cfg!(miri) { 64 } else { 1024 };
/// What the offset of a buffer counts from.
const BASE_BYTES: usize = 256;

/// A buffer inside poison.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// Which tensor it is; `None` for the workspace.
    pub role: Option<Role>,
    // Not bytes: typed views need their alignment.
    words: Vec<u64>,
    first: usize,
    len: usize,
    /// What it must still hold after the call; `None` if the call writes it.
    before: Option<Vec<u8>>,
}

/// A write outside of a buffer, or into one that is only read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tensor} was written {place}")]
pub struct Trespass {
    tensor: &'static str,
    place: String,
}

impl Guarded {
    /// `len` bytes of poison, `offset` bytes behind a multiple of 256.
    #[must_use]
    pub fn poisoned(role: Option<Role>, len: usize, offset: usize) -> Self {
        let first = GUARD_BYTES + offset;
        let bytes = (first + len + GUARD_BYTES).next_multiple_of(BASE_BYTES);
        let word = u64::from_ne_bytes([POISON; 8]);
        Self { role, words: vec![word; bytes / 8], first, len, before: None }
    }

    /// A copy of these bytes, which a call must not change.
    #[must_use]
    pub fn holding(role: Role, bytes: &[u8], offset: usize) -> Self {
        let mut buffer = Self::poisoned(Some(role), bytes.len(), offset);
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer.before = Some(bytes.to_vec());
        buffer
    }

    /// The bytes of the tensor.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.first..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.first..][..self.len]
    }

    /// The buffer and its surroundings as 64-bit words, to be copied elsewhere and back.
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

    /// A view of it as calls on the CPU take it.
    #[must_use]
    pub fn view(&self, dtype: DType) -> TensorView<'_> {
        for_dtype!(dtype, T => TensorView::from(bytemuck::cast_slice::<u8, T>(self.bytes())))
    }

    /// A view of it with the strides of references, offsets or logits.
    ///
    /// # Errors
    /// A buffer that is too short for them.
    pub fn source_view(&self, case: &Case) -> Result<TensorView<'_>, msdeform::Error> {
        let role = self.role.unwrap_or(Role::Offsets);
        let problem = &case.problem;
        let rest: &[usize] = match role {
            Role::References => &problem.references_shape()[2..],
            Role::Offsets => &problem.locations_shape()[2..],
            _ => &problem.weights_shape()[2..],
        };
        let shape = [&[problem.batch(), problem.queries()], rest].concat();
        let mut strides = case.source_strides(role).map(usize::cast_signed).to_vec();
        strides
            .extend((1..=rest.len()).map(|axis| rest[axis..].iter().product::<usize>() as isize));
        for_dtype!(problem.format_of(role), T => {
            TensorView::strided(bytemuck::cast_slice::<u8, T>(self.bytes()), &shape, &strides)
        })
    }

    /// A view that may be written.
    pub fn view_mut(&mut self, dtype: DType) -> TensorViewMut<'_> {
        for_dtype!(dtype, T => {
            TensorViewMut::from(bytemuck::cast_slice_mut::<u8, T>(self.bytes_mut()))
        })
    }

    /// Fails if anything around the buffer was written, or anything in a buffer that is only read.
    ///
    /// # Errors
    /// Which tensor, and where.
    pub fn check(&self) -> Result<(), Trespass> {
        let all: &[u8] = bytemuck::cast_slice(&self.words);
        let tensor = self.role.map_or("workspace", Role::name);
        let trespass = |place: String| Err(Trespass { tensor, place });
        let (ahead, behind) = (&all[..self.first], &all[self.first + self.len..]);
        let is_hit = |byte: &u8| *byte != POISON;
        if !is_poison(ahead)
            && let Some(at) = ahead.iter().rposition(is_hit)
        {
            return trespass(format!("{} bytes before its start", self.first - at));
        }
        if !is_poison(behind)
            && let Some(at) = behind.iter().position(is_hit)
        {
            return trespass(format!("{at} bytes behind its end"));
        }
        let differs = |before: &Vec<u8>| {
            let mut pairs = self.bytes().iter().zip(before);
            if self.bytes() == before { None } else { pairs.position(|(a, b)| a != b) }
        };
        match self.before.as_ref().and_then(differs) {
            Some(at) => trespass(format!("at byte {at}, though it is only read")),
            None => Ok(()),
        }
    }
}

/// Whether all bytes are poison. Whole slices are compared: byte by byte this was half of the time of a test in Miri.
fn is_poison(bytes: &[u8]) -> bool {
    const BAND: [u8; 256] = [POISON; 256];
    bytes.chunks(BAND.len()).all(|chunk| *chunk == BAND[..chunk.len()])
}

/// Elements before a tensor's first one.
const fn offset(case: &Case, role: Role) -> usize {
    let starts = &case.starts;
    match role {
        Role::Value => starts.value,
        Role::Locations | Role::Offsets => starts.locations,
        Role::Weights | Role::Logits | Role::References => starts.weights,
        Role::GradOutput => starts.upstream,
        Role::Output | Role::GradValue => starts.first,
        Role::GradLocations | Role::GradOffsets => starts.grad_locations,
        Role::GradWeights | Role::GradLogits | Role::GradReferences => starts.grad_weights,
    }
}

/// The tensors that a call reads and writes, in this order.
pub fn tensors(case: &Case) -> impl Iterator<Item = (Role, Access)> {
    let tensors = case.problem.operator().tensors(case.direction());
    tensors.filter(|(role, _)| case.wants.includes(*role))
}

/// Bytes before a tensor's first element, from a multiple of 256.
#[must_use]
pub fn offset_bytes(case: &Case, role: Role) -> usize {
    offset(case, role) * case.problem.format_of(role).size_bytes()
}

/// A tensor as it lies in memory, from its first element to its last; bytes that belong to no element are poison.
#[must_use]
pub fn laid_out(case: &Case, role: Role, inputs: &HostTensors) -> Vec<u8> {
    let packed = inputs[role].to_le_bytes();
    let size = case.problem.format_of(role).size_bytes();
    let elements = packed.len() / size;
    let last = (0..elements).map(|index| case.place_of(role, index)).max();
    let mut bytes = vec![POISON; last.map_or(0, |last| (last + 1) * size)];
    for (index, element) in packed.chunks_exact(size).enumerate() {
        bytes[case.place_of(role, index) * size..][..size].copy_from_slice(element);
    }
    bytes
}

/// Buffers for the tensors of a case: inputs filled, the others poisoned.
#[must_use]
pub fn buffers(case: &Case, inputs: &HostTensors) -> Vec<Guarded> {
    let buffer = |(role, access)| {
        let offset = offset_bytes(case, role);
        match access {
            Access::Read => Guarded::holding(role, &laid_out(case, role, inputs), offset),
            Access::Write => Guarded::poisoned(Some(role), case.problem.bytes_of(role), offset),
        }
    };
    tensors(case).map(buffer).collect()
}

/// Checks the surroundings of all buffers, and that inputs have not changed; returns what was written.
///
/// # Errors
/// The first trespass.
pub fn collect(buffers: &[Guarded]) -> Result<Vec<Vec<u8>>, Trespass> {
    let mut written = Vec::new();
    for buffer in buffers {
        buffer.check()?;
        if buffer.role.is_some() && buffer.before.is_none() {
            written.push(buffer.bytes().to_vec());
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_outside_of_a_buffer_is_found() {
        let mut buffer = Guarded::poisoned(Some(Role::Output), 12, 2);
        buffer.bytes_mut().fill(7);
        buffer.check().unwrap();
        let (before, behind) = (GUARD_BYTES + 1, GUARD_BYTES + 14);
        for (at, place) in [(before, "1 bytes before"), (behind, "0 bytes behind")] {
            let mut hit = buffer.clone();
            bytemuck::cast_slice_mut::<u64, u8>(hit.words_mut())[at] = 0;
            let error = hit.check().unwrap_err().to_string();
            assert!(error.contains("output was written") && error.contains(place), "{error}");
        }
    }

    #[test]
    fn an_input_that_changed_is_found() {
        let mut buffer = Guarded::holding(Role::Value, &[1, 2, 3, 4], 0);
        buffer.check().unwrap();
        buffer.bytes_mut()[2] = 9;
        let error = buffer.check().unwrap_err().to_string();
        assert!(error.contains("value was written at byte 2"), "{error}");
    }
}
