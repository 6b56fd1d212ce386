//! A call with everything that decides about its result: sizes, memory, numbers and the variant.

mod line;
mod memory;
mod numbers;

use msdeform::{BackwardCall, Direction, Mode, Problem, Role};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::Call;

use crate::HostTensors;
use crate::generate::random;

pub use line::BadLine;
pub use memory::{CaseMemory, SourceMemory, Starts, Trespass, UpstreamMemory, ValueMemory};
pub use msdeform::Gradients;
pub use numbers::{Samples, Values, Weights};

/// A call of the operator. Its line (`Display`, `FromStr`) makes it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub problem: Problem,
    pub wants: Wants,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    Output,
    Gradients(Gradients),
}

impl Wants {
    /// What a direction computes for a model: without gradients of references.
    pub const fn all(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Output,
            Direction::Backward => Self::Gradients(Gradients::ALL),
        }
    }

    /// Everything that a direction can compute.
    pub const fn everything(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Output,
            Direction::Backward => {
                Self::Gradients(Gradients { references: true, ..Gradients::ALL })
            }
        }
    }

    pub const fn direction(self) -> Direction {
        match self {
            Self::Output => Direction::Forward,
            Self::Gradients(_) => Direction::Backward,
        }
    }

    /// Whether a tensor that the direction could write is wanted.
    pub fn includes(self, role: Role) -> bool {
        match self {
            Self::Output => true,
            Self::Gradients(gradients) => gradients.includes(role),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub samples: Samples,
    pub values: Values,
    pub weights: Weights,
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VariantChoice {
    #[default]
    Own,
    /// This variant, with these knobs set, as a tuning file can.
    Named { variant: String, knobs: Vec<(String, i64)> },
}

impl Case {
    /// A plain call: contiguous, ordinary numbers, the backend's own choice.
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
    pub fn varied(problem: Problem, direction: Direction, seed: u64) -> Self {
        let (samples, weights) = (Samples::Mixed, Weights::Signed);
        let numbers = Numbers { samples, weights, ..Numbers::default() };
        Self { numbers, seed, ..Self::plain(problem, Wants::all(direction)) }
    }

    #[must_use]
    pub fn by(self, variant: &str, knobs: Vec<(String, i64)>) -> Self {
        Self { choice: VariantChoice::Named { variant: variant.to_owned(), knobs }, ..self }
    }

    pub const fn direction(&self) -> Direction {
        self.wants.direction()
    }

    pub fn inputs(&self) -> HostTensors {
        random::draw(self)
    }

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

    /// Multiply-adds of the reference: what a case costs to check.
    pub fn work(&self) -> u64 {
        let samples = self.problem.weights_len() as u64;
        let each = 4 * self.problem.channels() as u64 + 16;
        samples * each + self.problem.value_len() as u64 + self.problem.output_len() as u64
    }
}
