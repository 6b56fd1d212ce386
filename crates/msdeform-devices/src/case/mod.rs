//! A call with everything that decides about its result: sizes, memory, numbers and the variant.

mod line;
mod numbers;

use msdeform::{
    BackwardCall, Direction, Mode, OutputStrides, Problem, Role, RowStrides, SourceStrides,
    ValueStrides,
};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::{Call, Configuration};

use crate::HostTensors;
use crate::generate::random;
use crate::names::named;

pub use line::BadLine;
pub use msdeform::Gradients;
pub use numbers::{Samples, Values, Weights};

/// A call of the operator. Its line (`Display`, `FromStr`) makes it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Sizes, dtypes and layout.
    pub problem: Problem,
    /// What it computes.
    pub wants: Wants,
    /// What gradients promise.
    pub mode: Mode,
    /// How the values lie in memory.
    pub value_memory: ValueMemory,
    /// How the gradient of the output lies in memory.
    pub upstream_memory: UpstreamMemory,
    /// How references, offsets and logits lie in memory, where there are any.
    pub source_memory: SourceMemory,
    /// Where each tensor begins.
    pub starts: Starts,
    /// What the tensors hold.
    pub numbers: Numbers,
    /// Which numbers of that kind.
    pub seed: u64,
    /// Width of the raster that the queries form; 0 if they do not.
    pub raster_width: u32,
    /// The variant that computes it.
    pub choice: VariantChoice,
}

/// What a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The forward pass.
    Output,
    /// These gradients.
    Gradients(Gradients),
}

impl Wants {
    /// What a direction computes for a model: without gradients of references.
    #[must_use]
    pub const fn all(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Output,
            Direction::Backward => Self::Gradients(Gradients::ALL),
        }
    }

    /// Everything that a direction can compute.
    #[must_use]
    pub const fn everything(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Output,
            Direction::Backward => {
                Self::Gradients(Gradients { references: true, ..Gradients::ALL })
            }
        }
    }

    /// Forward or backward.
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            Self::Output => Direction::Forward,
            Self::Gradients(_) => Direction::Backward,
        }
    }

    /// Whether a tensor that the direction could write is wanted.
    #[must_use]
    pub fn includes(self, role: Role) -> bool {
        match self {
            Self::Output => true,
            Self::Gradients(gradients) => gradients.includes(role),
        }
    }
}

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
    /// How the gradient of the output lies in memory.
    UpstreamMemory "memory" {
        /// Contiguous.
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
    /// How references, offsets and logits lie in memory.
    SourceMemory "memory" {
        /// Contiguous.
        Packed "packed",
        /// Offsets and logits as parts of the rows of one projection, a little longer than both.
        Projection "projection",
        /// All images share their references, and their queries come first.
        SharedReferences "shared_references",
    }
}

/// Elements between a multiple of 256 bytes and the first element of each tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// Of the values.
    pub value: usize,
    /// Of the locations.
    pub locations: usize,
    /// Of the weights.
    pub weights: usize,
    /// Of the gradient of the output.
    pub upstream: usize,
    /// Of the output, or of the gradient of the values.
    pub first: usize,
    /// Of the gradient of the locations.
    pub grad_locations: usize,
    /// Of the gradient of the weights.
    pub grad_weights: usize,
}

impl Starts {
    pub(crate) fn list(self) -> [usize; 7] {
        let Self { value, locations, weights, upstream, first, grad_locations, grad_weights } =
            self;
        [value, locations, weights, upstream, first, grad_locations, grad_weights]
    }
}

impl From<[usize; 7]> for Starts {
    fn from(list: [usize; 7]) -> Self {
        let [value, locations, weights, upstream, first, grad_locations, grad_weights] = list;
        Self { value, locations, weights, upstream, first, grad_locations, grad_weights }
    }
}

/// What the tensors hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Where samples lie.
    pub samples: Samples,
    /// What the values are.
    pub values: Values,
    /// What the weights are.
    pub weights: Weights,
    /// What the gradient of the output is.
    pub upstream: Values,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            samples: Samples::Inside,
            values: Values::Unit,
            weights: Weights::Softmax,
            upstream: Values::Unit,
        }
    }
}

/// Who computes a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VariantChoice {
    /// The backend chooses.
    #[default]
    Own,
    /// This variant, with these knobs set, as a tuning file can.
    Named {
        /// Its id.
        variant: String,
        /// Knobs and their values.
        knobs: Vec<(String, i64)>,
    },
}

impl Case {
    /// A plain call: contiguous, ordinary numbers, the backend's own choice.
    #[must_use]
    pub fn plain(problem: Problem, wants: Wants) -> Self {
        Self {
            problem,
            wants,
            mode: Mode::Fast,
            value_memory: ValueMemory::default(),
            upstream_memory: UpstreamMemory::Packed,
            source_memory: SourceMemory::Packed,
            starts: Starts::default(),
            numbers: Numbers::default(),
            seed: 0,
            raster_width: 0,
            choice: VariantChoice::Own,
        }
    }

    /// A contiguous call for all that a direction computes, with samples of every kind: inside, on borders, far away,
    /// NaN and infinite.
    #[must_use]
    pub fn varied(problem: Problem, direction: Direction, seed: u64) -> Self {
        let (samples, weights) = (Samples::Mixed, Weights::Signed);
        let numbers = Numbers { samples, weights, ..Numbers::default() };
        Self { numbers, seed, ..Self::plain(problem, Wants::all(direction)) }
    }

    /// The same, computed by this variant with these knobs.
    #[must_use]
    pub fn by(self, variant: &str, knobs: Vec<(String, i64)>) -> Self {
        Self { choice: VariantChoice::Named { variant: variant.to_owned(), knobs }, ..self }
    }

    /// Forward or backward.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        self.wants.direction()
    }

    /// What it reads, drawn from its seed.
    #[must_use]
    pub fn inputs(&self) -> HostTensors {
        random::draw(self)
    }

    /// Where the element that is `index`-th of the packed tensor lies in memory, in elements from the first one.
    #[must_use]
    pub(crate) fn place_of(&self, role: Role, index: usize) -> usize {
        let problem = &self.problem;
        let (heads, channels) = (problem.heads(), problem.channels());
        let place = match role {
            Role::Value => {
                let (row, c) = (index / channels, index % channels);
                let (n, m, pixel) = if problem.layout().is_head_major() {
                    let (row, pixel) = (row / problem.spatial(), row % problem.spatial());
                    (row / heads, row % heads, pixel)
                } else {
                    (row / heads / problem.spatial(), row % heads, row / heads % problem.spatial())
                };
                let strides = self.value_strides();
                let [n, m, pixel, c] = [n, m, pixel, c].map(|index| index as i64);
                n * strides.batch + m * strides.head + pixel * strides.pixel + c
            }
            Role::GradOutput => {
                let (row, c) = (index / channels, index % channels);
                let (query, m) = (row / heads, row % heads);
                let (n, q) = (query / problem.queries(), query % problem.queries());
                let strides = self.upstream_strides();
                let [n, q, m, c] = [n, q, m, c].map(|index| index as i64);
                n * strides.batch + q * strides.query + m * strides.head + c * strides.channel
            }
            Role::References | Role::Offsets | Role::Logits => {
                let row = problem.len_of(role) / (problem.batch() * problem.queries());
                let [image, query] = self.source_strides(role);
                let (n, q) = (index / row / problem.queries(), index / row % problem.queries());
                return n * image + q * query + index % row;
            }
            _ => return index,
        };
        place as usize
    }

    /// The call of a GPU that this is.
    #[must_use]
    pub fn call<'a>(&'a self, device: &'a DeviceProps) -> Call<'a> {
        let backward = match self.wants {
            Wants::Output => None,
            Wants::Gradients(gradients) => {
                let grad_output = self.upstream_strides();
                Some(BackwardCall { gradients, mode: self.mode, grad_output })
            }
        };
        Call {
            problem: &self.problem,
            strides: self.value_strides(),
            device,
            query_raster_width: self.raster_width,
            sources: self.sources(),
            backward,
        }
    }

    /// The same call with every tensor as little aligned as a configuration allows.
    #[must_use]
    pub fn least_aligned(mut self, configuration: &Configuration) -> Self {
        let of = |role: Role| {
            configuration.alignment(role.storage()) / self.problem.format_of(role).size_bytes()
        };
        self.starts = Starts {
            value: of(Role::Value),
            locations: of(Role::Locations),
            weights: of(Role::Weights),
            upstream: of(Role::GradOutput),
            first: of(Role::Output).max(of(Role::GradValue)),
            grad_locations: of(Role::GradLocations),
            grad_weights: of(Role::GradWeights),
        };
        self
    }

    /// Where the values lie.
    #[must_use]
    pub fn value_strides(&self) -> ValueStrides {
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
    #[must_use]
    pub fn source_strides(&self, role: Role) -> [usize; 2] {
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

    /// Where all three of them lie.
    #[must_use]
    pub fn sources(&self) -> SourceStrides {
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
    #[must_use]
    pub fn upstream_strides(&self) -> OutputStrides {
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
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.value_memory == ValueMemory::default()
            && self.upstream_memory == UpstreamMemory::Packed
    }

    /// Multiply-adds of the reference: what a case costs to check.
    #[must_use]
    pub fn work(&self) -> u64 {
        let samples = self.problem.weights_len() as u64;
        let each = 4 * self.problem.channels() as u64 + 16;
        samples * each + self.problem.value_len() as u64 + self.problem.output_len() as u64
    }
}
