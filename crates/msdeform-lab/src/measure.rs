//! Timing a variant on a case.

use std::time::Instant;

use crate::device::{Device, DeviceError, Prepared, Timing};
use crate::workload::Label;
use crate::{HostTensors, Statistics, Throughput, Work, WorkloadCase, number};
use msdeform::{Problem, VariantSpec};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Seconds of samples, after the warm-up.
    pub seconds: f64,
    pub min_samples: usize,
    pub max_samples: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { seconds: 1.0, min_samples: 5, max_samples: 2000 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    #[serde(flatten)]
    pub label: Label,
    /// In which mode, where the variant has several.
    pub mode: String,
    pub timing: Timing,
    pub threads: Option<usize>,
    #[serde(flatten)]
    pub statistics: Statistics,
    #[serde(flatten)]
    pub work: Work,
    /// Bytes allocated on top of inputs and outputs.
    pub workspace_bytes: usize,
    /// Worst relative L2 error against the reference on the same case, where it was verified.
    #[serde(default, with = "number::or_null")]
    pub rel_l2: f64,
    /// Median without the steps whose results another run on the same inputs could use, where the variant
    /// has such steps. `median_us` always includes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_after_preparation: Option<f64>,
    /// Whether this is what a user gets without naming a variant.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dispatched: bool,
    /// Whether the others of its direction are compared with this one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_baseline: bool,
    /// Which of the record's runs it comes from, where that has several.
    #[serde(default, skip_serializing_if = "is_default")]
    pub run: usize,
    /// Samples in the order taken; a record on disk keeps some of them.
    pub samples_us: Vec<f64>,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Measurement {
    pub fn throughput(&self) -> Throughput {
        self.work.throughput(self.statistics.median_us)
    }

    /// Time of the baseline among these over this one's: the same case by the same clock in the same mode.
    pub fn speedup_among(&self, others: &[Self]) -> Option<f64> {
        let is_same_case = |other: &&Self| {
            let variant = self.label.variant.clone();
            other.is_baseline
                && (other.timing, other.threads, &other.mode)
                    == (self.timing, self.threads, &self.mode)
                && Label { variant, ..other.label.clone() } == self.label
        };
        let baseline = others.iter().find(is_same_case)?;
        Some(baseline.statistics.median_us / self.statistics.median_us)
    }
}

/// Warm-up ends after this many runs or this share of the time, whichever is first.
const WARM_UP_RUNS: usize = 3;
const WARM_UP_SHARE: f64 = 0.25;

/// Times variants on inputs that were made for the case in full size, by each clock that shows something about it: one variant,
/// or a forward and a backward in turn as one training step.
pub(crate) fn measure(
    device: &dyn Device,
    case: &WorkloadCase<'_>,
    (problem, inputs): (&Problem, &HostTensors),
    variants: &[&'static VariantSpec],
    budget: Budget,
) -> Result<Vec<Measurement>, DeviceError> {
    let mut prepared = device.prepare(variants, problem, inputs)?;
    let is_dispatched = |variant: &&VariantSpec| {
        device.dispatch(problem, variant.direction).is_ok_and(|chosen| chosen.id == variant.id)
    };
    let is_baseline =
        |of: &VariantSpec| device.baseline(of.direction).is_some_and(|first| first.id == of.id);
    let work = variants.iter().map(|variant| Work::of(problem, variant.direction));
    let of_all = Measurement {
        label: case.label(variants, problem),
        mode: prepared.mode().to_owned(),
        timing: Timing::Cpu,
        threads: device.threads(),
        statistics: Statistics::default(),
        work: work.reduce(Work::and).unwrap_or_default(),
        workspace_bytes: 0,
        rel_l2: f64::NAN,
        us_after_preparation: None,
        dispatched: variants.iter().all(is_dispatched),
        is_baseline: matches!(variants, [one] if is_baseline(one)),
        run: 0,
        samples_us: Vec::new(),
    };
    warm_up(prepared.as_mut(), budget)?;
    let clocks = prepared.clocks().into_iter();
    clocks.map(|clock| time(prepared.as_mut(), clock, budget, of_all.clone())).collect()
}

fn warm_up(prepared: &mut dyn Prepared, budget: Budget) -> Result<(), DeviceError> {
    let start = Instant::now();
    for _ in 0..WARM_UP_RUNS {
        prepared.run()?;
        if start.elapsed().as_secs_f64() > budget.seconds * WARM_UP_SHARE {
            break;
        }
    }
    Ok(())
}

/// The measurement with the times by one clock.
fn time(
    prepared: &mut dyn Prepared,
    timing: Timing,
    budget: Budget,
    of_all: Measurement,
) -> Result<Measurement, DeviceError> {
    let samples_us = take_samples(prepared, timing, budget)?;
    let statistics = Statistics::of(&samples_us).ok_or_else(|| DeviceError::Failed {
        reason: format!("{}: the device's clock returned no usable time", of_all.label.variant),
    })?;
    let us_after_preparation = after_preparation(prepared, timing, samples_us.len())?;
    let workspace_bytes = prepared.workspace_bytes();
    Ok(Measurement {
        timing,
        statistics,
        workspace_bytes,
        us_after_preparation,
        samples_us,
        ..of_all
    })
}

/// The median of as many runs that skip what was prepared before, where there is such a thing.
fn after_preparation(
    prepared: &mut dyn Prepared,
    clock: Timing,
    count: usize,
) -> Result<Option<f64>, DeviceError> {
    let samples_us = prepared.time_after_preparation(clock, count)?;
    Ok(samples_us.and_then(|samples_us| Statistics::of(&samples_us)).map(|s| s.median_us))
}

fn take_samples(
    prepared: &mut dyn Prepared,
    clock: Timing,
    budget: Budget,
) -> Result<Vec<f64>, DeviceError> {
    let start = Instant::now();
    let mut samples_us = Vec::new();
    while samples_us.len() < budget.min_samples.max(1)
        || (samples_us.len() < budget.max_samples && start.elapsed().as_secs_f64() < budget.seconds)
    {
        samples_us.extend(prepared.time(clock, 1)?);
    }
    Ok(samples_us)
}
