//! A call with everything that decides about its result: sizes, memory, numbers and the variant.

mod line;
mod memory;
mod numbers;

use msdeform::{BackwardCall, Direction, Gradients, Mode, Problem};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::Call;

use crate::HostTensors;
use crate::generate::random;

pub use line::BadLine;
pub(crate) use memory::place_in;
pub use memory::{CallMemory, SourceMemory, Starts, Trespass, UpstreamMemory, ValueMemory};
pub use numbers::{Samples, Values, Weights};

/// A call of the operator. Its line (`Display`, `FromStr`) makes it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub problem: Problem,
    /// The gradients that are computed; `None` for the output.
    pub wants: Option<Gradients>,
    pub mode: Mode,
    pub value_memory: ValueMemory,
    pub upstream_memory: UpstreamMemory,
    pub source_memory: SourceMemory,
    pub starts: Starts,
    pub numbers: Numbers,
    pub seed: u64,
    /// Width of the raster that the queries form; 0 if they do not.
    pub raster_width: u32,
    pub choice: VariantChoice,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub samples: Samples,
    pub values: Values,
    pub weights: Weights,
    pub upstream: Values,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VariantChoice {
    #[default]
    Own,
    /// This variant, with these knobs set, as a tuning file can.
    Named { variant: String, knobs: Vec<(String, i64)> },
}

impl Case {
    /// A plain call: contiguous, ordinary numbers, the backend's own choice.
    pub fn plain(problem: Problem, wants: Option<Gradients>) -> Self {
        Self {
            problem,
            wants,
            mode: Mode::Fast,
            value_memory: ValueMemory::default(),
            upstream_memory: UpstreamMemory::default(),
            source_memory: SourceMemory::default(),
            starts: Starts::default(),
            numbers: Numbers::default(),
            seed: 0,
            raster_width: 0,
            choice: VariantChoice::Own,
        }
    }

    /// A contiguous call for all that a direction computes, with samples of every kind: inside, on borders, far away,
    /// NaN and infinite.
    pub fn varied(problem: Problem, direction: Direction, seed: u64) -> Self {
        let (samples, weights) = (Samples::Mixed, Weights::Signed);
        let numbers = Numbers { samples, weights, ..Numbers::default() };
        let wants = (direction == Direction::Backward).then_some(Gradients::ALL);
        Self { numbers, seed, ..Self::plain(problem, wants) }
    }

    #[must_use]
    pub fn by(self, variant: &str, knobs: Vec<(String, i64)>) -> Self {
        Self { choice: VariantChoice::Named { variant: variant.to_owned(), knobs }, ..self }
    }

    pub const fn direction(&self) -> Direction {
        if self.wants.is_some() { Direction::Backward } else { Direction::Forward }
    }

    pub fn inputs(&self) -> HostTensors {
        random::draw(self)
    }

    pub fn call<'a>(&'a self, device: &'a DeviceProps) -> Call<'a> {
        let (mode, grad_output) = (self.mode, self.upstream_strides());
        Call {
            problem: &self.problem,
            strides: self.value_strides(),
            device,
            query_raster_width: self.raster_width,
            sources: self.sources(),
            backward: self.wants.map(|gradients| BackwardCall { gradients, mode, grad_output }),
        }
    }

    /// Multiply-adds of the reference: what a case costs to check.
    pub fn work(&self) -> u64 {
        let samples = self.problem.weights_len() as u64;
        let each = 4 * self.problem.channels() as u64 + 16;
        samples * each + self.problem.value_len() as u64 + self.problem.output_len() as u64
    }
}
