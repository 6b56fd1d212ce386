//! Finding the best variant and knobs for a call, on the machine at hand.
//!
//! Every choice is compared with the reference before it is timed. Screening is cheap and wide: every variant as it is,
//! then single knobs of the best ones, then the knobs that helped, together. The better half stays, is timed again,
//! and so on; the last few and the built-in choice take turns, so that a clock that drifts meets all of them. Only
//! samples of that last round count: those that led to it are the lucky ones.

mod ahead;
mod record;
mod search;
mod table;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use msdeform::{Direction, Problem, VariantSpec};
use msdeform_cuda::tuning::{CallClass, Contender, Entry};
use serde::{Deserialize, Serialize};

pub use ahead::compile_ahead;
pub use record::{TuneRecord, Unfinished};
pub use table::gaps_markdown;

use crate::device::{Device, KnobbedVariant, Timing};
use crate::workload::{Label, WorkloadError};
use crate::{BenchError, HostTensors, WorkloadCase};

use crate::verify::Limits;

use search::Search;

/// A choice that was timed to the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finalist {
    #[serde(flatten)]
    pub contender: Contender,
    pub mad_us: f64,
    /// Timed runs of the last round.
    pub runs: usize,
    pub rel_l2: f64,
}

/// A choice that was given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    pub choice: String,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TunedCase {
    /// The case, with the variant that won.
    #[serde(flatten)]
    pub label: Label,
    /// The calls that this speaks for.
    pub class: CallClass,
    pub timing: Timing,
    /// Choices that there were, before time or verification ended it for some.
    pub choices: usize,
    /// Choices that were verified and timed.
    pub timed: usize,
    pub seconds: f64,
    /// What wins, and has more than luck on its side against `builtin`.
    pub best: Finalist,
    /// What is chosen without a tuning file.
    pub builtin: Finalist,
    /// Choices that refused, failed, or computed something else.
    pub dropped: Vec<Dropped>,
}

impl TunedCase {
    /// Time of the built-in choice over the best time, minus one: what tuning gains.
    pub fn gap(&self) -> f64 {
        self.builtin.contender.time_us / self.best.contender.time_us - 1.0
    }

    /// Choices that time ran out for.
    pub const fn untried(&self) -> usize {
        self.choices.saturating_sub(self.timed + self.dropped.len())
    }

    pub const fn has_choice(&self) -> bool {
        self.choices > 1
    }

    pub fn entry(&self) -> Entry {
        let Label { workload, locations, .. } = &self.label;
        Entry {
            class: self.class.clone(),
            best: self.best.contender.clone(),
            builtin: self.builtin.contender.clone(),
            measured_on: format!("{workload}, {locations} locations"),
        }
    }
}

/// What both directions of a case are tuned on.
#[derive(Clone, Debug)]
pub struct Inputs {
    problem: Problem,
    /// In full size, for the clock.
    whole: HostTensors,
    verified: Problem,
    /// Smaller, for the reference.
    part: HostTensors,
}

impl Inputs {
    pub fn of(case: &WorkloadCase<'_>) -> Result<Self, WorkloadError> {
        let (problem, verified) = (case.problem()?, Limits::default().shrink(case)?);
        let (whole, part) = (case.inputs(&problem)?, case.inputs(&verified)?);
        Ok(Self { problem, whole, verified, part })
    }
}

/// Until when one case may take.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    start: Instant,
    end: Instant,
}

impl Share {
    pub fn of_seconds(seconds: f64) -> Self {
        let start = Instant::now();
        let duration = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self { start, end: start + duration }
    }

    fn is_past(&self, part: f64) -> bool {
        let used = self.start.elapsed().as_secs_f64();
        used >= part * self.end.duration_since(self.start).as_secs_f64()
    }
}

/// Tunes one call. `progress` hears what is tried. At least every variant as it is, and the built-in choice, are timed,
/// however short the share.
/// [`BenchError::Device`] if no variant takes the case, or the built-in one fails on it
/// or computes something else: then there is nothing to compare with.
pub fn tune_case(
    device: &dyn Device,
    (case, inputs): (&WorkloadCase<'_>, &Inputs),
    direction: Direction,
    variants: &[&'static VariantSpec],
    share: Share,
    progress: &mut dyn FnMut(&str),
) -> Result<TunedCase, BenchError> {
    let problem = &inputs.problem;
    let builtin = KnobbedVariant::own(device.builtin(problem, direction)?);
    let mut search = Search::new(device, inputs, &builtin, share)?;
    search.run(variants, progress)?;
    let (best, builtin) = search.decide(progress)?;
    let variant = search.variant_of(&best);
    Ok(TunedCase {
        label: case.label(&[variant], problem),
        class: device.class(problem, direction),
        timing: search.clock,
        choices: search.choices,
        timed: search.candidates.len(),
        seconds: share.start.elapsed().as_secs_f64(),
        best,
        builtin,
        dropped: search.dropped,
    })
}
