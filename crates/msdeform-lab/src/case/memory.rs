//! How the tensors of a case lie in memory: strides, first elements, and the memory itself.

use std::borrow::Cow;

use msdeform::{
    Access, CpuPlan, OutputStrides, Role, RowStrides, SourceStrides, TensorView, ValueStrides,
};
use msdeform_cuda::variants::Configuration;

use super::Case;
use crate::buffer::for_dtype;
use crate::names::named;
use crate::{Buffer, HostTensors};

/// The values as a slice of a larger tensor: so many more pixels, heads and channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueMemory {
    /// Pixels behind those of an image.
    pub pixels: usize,
    /// Heads behind those that are used.
    pub heads: usize,
    /// Channels behind those of a head.
    pub channels: usize,
    /// All images are the same memory.
    pub one_image: bool,
}

named! {
    UpstreamMemory "memory" {
        Packed "packed",
        /// One number seen from everywhere: what `sum().backward()` delivers.
        Expanded "expanded",
        /// All queries share a row: what `mean(1).backward()` delivers.
        SharedRow "shared_row",
        /// Part of longer rows, not a multiple of any vector.
        Sliced "sliced",
        /// Queries before images, as models that keep sequences first have it.
        QueriesFirst "queries_first",
        /// Channels are not neighbours.
        Spread "spread",
        /// All images share one: what a mean over the batch delivers.
        SharedImage "shared_image",
        /// Channels before everything else: what a transposed view delivers.
        ChannelsFirst "channels_first",
    }
}

named! {
    SourceMemory "memory" {
        Packed "packed",
        /// Offsets and logits as parts of the rows of one projection, a little longer than both.
        Projection "projection",
        /// All images share their references, and their queries come first.
        SharedReferences "shared_references",
    }
}

/// Elements between a multiple of 256 bytes and the first element of each tensor, by `slot`.
pub type Starts = [usize; 7];

/// A call has at most one tensor of a slot.
const fn slot(role: Role) -> usize {
    match role {
        Role::Value => 0,
        Role::Locations | Role::Offsets => 1,
        Role::Weights | Role::Logits | Role::References => 2,
        Role::GradOutput => 3,
        Role::Output | Role::GradValue => 4,
        Role::GradLocations | Role::GradOffsets => 5,
        Role::GradWeights | Role::GradLogits | Role::GradReferences => 6,
    }
}

impl Case {
    /// The tensors that it reads and writes, in this order.
    pub fn tensors(&self) -> impl Iterator<Item = (Role, Access)> {
        let tensors = self.problem.operator().tensors(self.direction());
        tensors.filter(|(role, _)| self.wants.is_none_or(|wanted| wanted.includes(*role)))
    }

    /// Bytes before a tensor's first element, from a multiple of 256.
    pub fn offset_bytes(&self, role: Role) -> usize {
        self.starts[slot(role)] * self.problem.format_of(role).size_bytes()
    }

    /// The same call with every tensor as little aligned as a configuration allows.
    #[must_use]
    pub fn least_aligned(mut self, configuration: &Configuration) -> Self {
        self.starts = Starts::default();
        for (role, _) in self.tensors().collect::<Vec<_>>() {
            let bytes = configuration.alignment(role.storage());
            let start = &mut self.starts[slot(role)];
            *start = (bytes / self.problem.format_of(role).size_bytes()).max(*start);
        }
        self
    }

    /// A tensor as it lies in memory, from its first element to its last; bytes that belong to no element are poison.
    pub fn laid_out(&self, role: Role, inputs: &HostTensors) -> Buffer {
        let (tensor, axes) = (&inputs[role], self.axes(role));
        let size = tensor.dtype().size_bytes();
        let places: Vec<usize> = (0..tensor.len()).map(|index| place_in(&axes, index)).collect();
        let len = places.iter().max().map_or(0, |last| (last + 1) * size);
        let mut memory = Buffer::poisoned_bytes(tensor.dtype(), len, self.offset_bytes(role));
        let bytes = memory.bytes_mut();
        for (place, element) in places.into_iter().zip(tensor.bytes().chunks_exact(size)) {
            bytes[place * size..][..size].copy_from_slice(element);
        }
        memory
    }

    /// Size and stride of each axis of a tensor, in elements. Axes that are always packed may be one.
    pub fn axes(&self, role: Role) -> Vec<(usize, i64)> {
        let problem = &self.problem;
        let (batch, queries) = (problem.batch(), problem.queries());
        match role {
            Role::Value => {
                let ValueStrides { batch, head, pixel } = self.value_strides();
                let [second, third] =
                    if problem.layout().is_head_major() { [head, pixel] } else { [pixel, head] };
                problem.value_shape().into_iter().zip([batch, second, third, 1]).collect()
            }
            Role::GradOutput => {
                let strides = self.upstream_strides();
                let (heads, channels) = (problem.heads(), problem.channels());
                let outer = [(batch, strides.batch), (queries, strides.query)];
                [outer, [(heads, strides.head), (channels, strides.channel)]].concat()
            }
            Role::References | Role::Offsets | Role::Logits => {
                let [image, query] = self.source_strides(role);
                let row = problem.len_of(role) / (batch * queries).max(1);
                vec![(batch, image as i64), (queries, query as i64), (row, 1)]
            }
            _ => vec![(problem.len_of(role), 1)],
        }
    }

    pub(crate) fn value_strides(&self) -> ValueStrides {
        let ValueMemory { pixels, heads, channels, one_image } = self.value_memory;
        let pixels = (self.problem.spatial() + pixels) as i64;
        let heads = (self.problem.heads() + heads) as i64;
        let channels = (self.problem.channels() + channels) as i64;
        let batch = if one_image { 0 } else { pixels * heads * channels };
        if self.problem.layout().is_head_major() {
            ValueStrides { batch, head: pixels * channels, pixel: channels }
        } else {
            ValueStrides { batch, head: channels, pixel: heads * channels }
        }
    }

    /// Elements from one image to the next, and from one query to the next, of references, offsets or logits.
    pub(crate) fn source_strides(&self, role: Role) -> [usize; 2] {
        let (batch, queries) = (self.problem.batch(), self.problem.queries());
        let row = self.problem.len_of(role) / (batch * queries).max(1);
        let projected = 3 * self.problem.heads() * self.problem.samples() + 5;
        match (self.source_memory, role) {
            (SourceMemory::Projection, Role::Offsets | Role::Logits) => {
                [queries * projected, projected]
            }
            (SourceMemory::SharedReferences, Role::References) => [0, row],
            (SourceMemory::SharedReferences, _) => [row, batch * row],
            _ => [queries * row, row],
        }
    }

    pub(crate) fn sources(&self) -> SourceStrides {
        let of = |role| {
            let [image, query] = self.source_strides(role).map(|stride| stride as i64);
            RowStrides { image, query }
        };
        SourceStrides {
            references: of(Role::References),
            offsets: of(Role::Offsets),
            logits: of(Role::Logits),
        }
    }

    /// Where the gradient of the output lies.
    pub(crate) fn upstream_strides(&self) -> OutputStrides {
        let packed = OutputStrides::packed(&self.problem);
        let (batch, row) = (self.problem.batch() as i64, packed.query);
        match self.upstream_memory {
            UpstreamMemory::Packed => packed,
            UpstreamMemory::Expanded => OutputStrides { batch: 0, query: 0, head: 0, channel: 0 },
            UpstreamMemory::SharedRow => OutputStrides { batch: row, query: 0, ..packed },
            UpstreamMemory::Sliced => OutputStrides {
                batch: self.problem.queries() as i64 * (row + 3),
                query: row + 3,
                ..packed
            },
            UpstreamMemory::QueriesFirst => {
                OutputStrides { batch: row, query: batch * row, ..packed }
            }
            UpstreamMemory::Spread => OutputStrides {
                batch: 2 * packed.batch,
                query: 2 * packed.query,
                head: 2 * packed.head,
                channel: 2,
            },
            UpstreamMemory::SharedImage => OutputStrides { batch: 0, ..packed },
            UpstreamMemory::ChannelsFirst => {
                let heads = self.problem.heads() as i64;
                let image = self.problem.queries() as i64 * heads;
                OutputStrides { batch: image, query: heads, head: 1, channel: batch * image }
            }
        }
    }

    /// Whether values and gradient lie as plans of the CPU take them.
    pub fn is_contiguous(&self) -> bool {
        self.value_memory == ValueMemory::default()
            && self.upstream_memory == UpstreamMemory::Packed
    }
}

/// Where the element that is `index`-th of the packed tensor lies among these axes, in elements from the first one.
pub(crate) fn place_in(axes: &[(usize, i64)], index: usize) -> usize {
    let (mut rest, mut place) = (index, 0);
    for &(size, stride) in axes.iter().rev() {
        place += (rest % size) as i64 * stride;
        rest /= size;
    }
    place as usize
}

/// The tensors of a call between guards: packed, or where the strides and starts of a case put them.
pub struct CallMemory<'a> {
    case: Option<&'a Case>,
    pub read: Cow<'a, HostTensors>,
    /// What the tensors that a case only reads must still hold after the call.
    before: Option<HostTensors>,
    pub written: HostTensors,
}

/// A write outside of a tensor, or into one that is only read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tensor} was written {place}")]
pub struct Trespass {
    pub(crate) tensor: &'static str,
    pub(crate) place: String,
}

impl<'a> CallMemory<'a> {
    /// Inputs in place, and poison where the call writes.
    pub fn of_case(case: &'a Case, inputs: &HostTensors) -> Self {
        let of = |wanted: Access| case.tensors().filter(move |(_, access)| *access == wanted);
        let read = of(Access::Read).map(|(role, _)| (role, case.laid_out(role, inputs)));
        let read: HostTensors = read.collect();
        let poison = |role| {
            let (dtype, len) = (case.problem.format_of(role), case.problem.bytes_of(role));
            Buffer::poisoned_bytes(dtype, len, case.offset_bytes(role))
        };
        let written = of(Access::Write).map(|(role, _)| (role, poison(role))).collect();
        Self { case: Some(case), before: Some(read.clone()), read: Cow::Owned(read), written }
    }

    /// Inputs as they are, which may be gigabytes.
    pub(crate) const fn packed(inputs: &'a HostTensors, written: HostTensors) -> Self {
        Self { case: None, before: None, read: Cow::Borrowed(inputs), written }
    }

    /// What was written, if nothing else was.
    pub fn results(&self) -> Result<HostTensors, Trespass> {
        self.read.check_guards()?;
        self.written.check_guards()?;
        let before = self.before.iter().flat_map(HostTensors::iter);
        for ((role, buffer), (_, before)) in self.read.iter().zip(before) {
            let mut pairs = buffer.bytes().iter().zip(before.bytes());
            if buffer != before
                && let Some(at) = pairs.position(|(a, b)| a != b)
            {
                let place = format!("at byte {at}, though it is only read");
                return Err(Trespass { tensor: role.name(), place });
            }
        }
        Ok(self.written.clone())
    }

    /// Runs a plan of the CPU on these tensors.
    pub(crate) fn run(&mut self, plan: &mut CpuPlan) -> Result<(), msdeform::Error> {
        let read = self.read.iter().map(|(role, buffer)| Ok((role, self.view(role, buffer)?)));
        let read = read.collect::<Result<Vec<_>, msdeform::Error>>()?;
        plan.run(read, self.written.iter_mut().map(|(role, buffer)| (role, buffer.view_mut())))
    }

    /// A view of a tensor that is read, with its strides if it is one of references, offsets or logits.
    fn view<'b>(&self, role: Role, buffer: &'b Buffer) -> Result<TensorView<'b>, msdeform::Error> {
        let has_strides = matches!(role, Role::References | Role::Offsets | Role::Logits);
        let Some(case) = self.case.filter(|_| has_strides) else { return Ok(buffer.view()) };
        let shape = case.problem.shape_of(role);
        let strides = case.source_strides(role).map(usize::cast_signed);
        let rest = (3..=shape.len()).map(|axis| shape[axis..].iter().product::<usize>() as isize);
        let strides: Vec<isize> = strides.into_iter().chain(rest).collect();
        for_dtype!(buffer.dtype(), T => {
            TensorView::strided(buffer.elements::<T>(), &shape, &strides)
        })
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{Direction, Problem};

    use super::*;

    #[test]
    fn an_input_that_changed_is_found() {
        let builder = Problem::builder().queries(2).levels([(2, 2)]).channels(2).points(1);
        let case = Case::varied(builder.build().unwrap(), Direction::Forward, 0);
        let mut memory = CallMemory::of_case(&case, &case.inputs());
        assert!(memory.results().unwrap()[Role::Output].to_f64().iter().all(|x| x.is_nan()));
        let (_, value) = memory.read.to_mut().iter_mut().next().unwrap();
        value.bytes_mut()[2] ^= 9;
        let error = memory.results().unwrap_err().to_string();
        assert!(error.contains("value was written at byte 2"), "{error}");
        memory.read = Cow::Owned(memory.before.clone().unwrap());
        let (_, output) = memory.written.iter_mut().next().unwrap();
        bytemuck::cast_slice_mut::<u64, u8>(output.image_mut())[0] = 0;
        assert!(memory.results().unwrap_err().to_string().starts_with("output was written"));
    }
}
