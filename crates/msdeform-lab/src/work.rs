//! How much work a call is: the numerators of every throughput.

use msdeform::{Direction, Problem};
use serde::{Deserialize, Serialize};

/// The formula behind every TFLOP/s figure, in the words of `--help` and of the summaries.
pub const OPERATIONS_FORMULA: &str = "TFLOP/s counts as the seed documents do: 16 operations per \
    sample and channel (4 loads, 8 multiplications, 4 additions), so 512 per output element with \
    their 32 samples; the backward counts twice that.";

/// What the GB/s figures count, in the words of `--help` and of the summaries.
pub const BYTES_FORMULA: &str = "gathered GB/s counts four corners of D channels per sample in the \
    storage format (twice that backward: values read, gradients updated); compulsory GB/s counts \
    every input read once and every output written once.";

/// Work of one call, the same for every implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub samples: u64,
    /// See [`OPERATIONS_FORMULA`].
    pub operations: u64,
    /// See [`BYTES_FORMULA`].
    pub gathered_bytes: u64,
    /// See [`BYTES_FORMULA`].
    pub compulsory_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    pub samples_per_s: f64,
    pub gathered_gb_per_s: f64,
    pub compulsory_gb_per_s: f64,
    pub tflop_per_s: f64,
}

impl Work {
    pub fn of(problem: &Problem, direction: Direction) -> Self {
        let samples = problem.weights_len() as u64;
        let sample_channels = samples * problem.channels() as u64;
        let gathered = sample_channels * 4 * problem.dtype().size_bytes() as u64;
        // The backward reads the values again and updates their gradients.
        let passes = match direction {
            Direction::Forward => 1,
            Direction::Backward => 2,
        };
        let tensors = problem.operator().tensors(direction);
        let moved = tensors.map(|(role, _)| problem.bytes_of(role) as u64);
        Self {
            samples,
            operations: passes * 16 * sample_channels,
            gathered_bytes: passes * gathered,
            compulsory_bytes: moved.sum(),
        }
    }

    /// This and another call together. Samples are those of one: both look at the same.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            samples: self.samples,
            operations: self.operations + other.operations,
            gathered_bytes: self.gathered_bytes + other.gathered_bytes,
            compulsory_bytes: self.compulsory_bytes + other.compulsory_bytes,
        }
    }

    pub fn throughput(&self, time_us: f64) -> Throughput {
        let seconds = time_us * 1e-6;
        Throughput {
            samples_per_s: self.samples as f64 / seconds,
            gathered_gb_per_s: self.gathered_bytes as f64 / seconds * 1e-9,
            compulsory_gb_per_s: self.compulsory_bytes as f64 / seconds * 1e-9,
            tflop_per_s: self.operations as f64 / seconds * 1e-12,
        }
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, ValueLayout};

    use super::*;
    use crate::workload::{self, Sizes};

    fn seed() -> Problem {
        let seed = workload::find("seed").unwrap();
        seed.problem(DType::F16, ValueLayout::HeadMajor, Sizes::default()).unwrap()
    }

    #[test]
    fn the_seed_workload_has_the_published_sizes() {
        let work = Work::of(&seed(), Direction::Forward);
        assert_eq!(work.operations, 512 * seed().output_len() as u64);
        assert!((work.gathered_bytes as f64 / 6.07e9 - 1.0).abs() < 2e-3);
        assert!((work.compulsory_bytes as f64 / 0.25e9 - 1.0).abs() < 2e-2);
        // 2.2 TFLOP/s, the best the seed documents report, is 5.5 ms.
        assert!((work.throughput(5512.0).tflop_per_s - 2.2).abs() < 0.01);
    }

    #[test]
    fn the_backward_moves_every_gradient() {
        let forward = Work::of(&seed(), Direction::Forward);
        let backward = Work::of(&seed(), Direction::Backward);
        let output_bytes = 2 * seed().output_len() as u64;
        assert_eq!(
            backward.compulsory_bytes,
            2 * (forward.compulsory_bytes - output_bytes) + output_bytes
        );
        assert_eq!(backward.gathered_bytes, 2 * forward.gathered_bytes);
    }
}
