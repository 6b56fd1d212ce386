//! Every variant that fits against the `f64` reference, on small but representative problems.

use msdeform::{Problem, VariantSpec};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceError};
use crate::oracle::{Oracle, TensorCheck};
use crate::workload::{Label, WorkloadError};
use crate::{WorkloadCase, memory};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Samples times channels that the reference computes; queries are thinned out to stay below.
    pub sample_channels: usize,
    /// Elements of the value tensor; the batch is reduced to one image to stay below.
    pub value_elements: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sample_channels: 1 << 20, value_elements: 4 << 20 }
    }
}

impl Limits {
    /// No limits: the workload as it is, however long the reference takes.
    pub const NONE: Self = Self { sample_channels: usize::MAX, value_elements: usize::MAX };

    /// The problem to verify for a case: at most two images (one where those are large) and an even
    /// choice of the queries.
    pub(crate) fn shrink(&self, case: &WorkloadCase<'_>) -> Result<Problem, WorkloadError> {
        let whole = case.problem()?;
        if self.sample_channels == usize::MAX {
            return Ok(whole);
        }
        let image_elements = whole.value_len() / whole.batch().max(1);
        let affordable = self.value_elements / image_elements.max(1);
        let batch = whole.batch().min(affordable.clamp(1, 2));
        let per_query = batch * whole.heads() * whole.samples() * whole.channels();
        let queries = whole.queries().min((self.sample_channels / per_query.max(1)).max(16));
        whole
            .to_builder()
            .batch(batch)
            .queries(queries)
            .build()
            .map_err(|source| WorkloadError::Problem { name: case.workload.name.clone(), source })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verification {
    #[serde(flatten)]
    pub label: Label,
    /// Every tensor it wrote; empty if it failed to run.
    pub tensors: Vec<TensorCheck>,
    pub pass: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Verification {
    pub(crate) fn of(label: Label, checks: Result<Vec<TensorCheck>, DeviceError>) -> Self {
        let error = checks.as_ref().err().map(ToString::to_string);
        let tensors = checks.unwrap_or_default();
        let pass = error.is_none() && tensors.iter().all(|check| check.pass);
        Self { label, tensors, pass, error }
    }

    /// The worst relative L2 error of its tensors; NaN if one is NaN or nothing ran.
    pub fn worst_rel_l2(&self) -> f64 {
        let errors = || self.tensors.iter().map(|check| check.comparison.rel_l2);
        if self.tensors.is_empty() || errors().any(f64::is_nan) {
            return f64::NAN;
        }
        errors().fold(0.0, f64::max)
    }

    pub fn elements(&self) -> usize {
        self.tensors.iter().map(|check| check.comparison.elements).sum()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skip {
    #[serde(flatten)]
    pub label: Label,
    pub reason: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub checked: Vec<Verification>,
    pub skipped: Vec<Skip>,
}

impl Report {
    /// Whether nothing failed. True for an empty report: callers that need evidence count.
    pub fn passed(&self) -> bool {
        self.checked.iter().all(|check| check.pass)
    }

    pub fn extend(&mut self, other: Self) {
        self.checked.extend(other.checked);
        self.skipped.extend(other.skipped);
    }

    pub fn failures(&self) -> impl Iterator<Item = &Verification> {
        self.checked.iter().filter(|check| !check.pass)
    }
}

/// Runs the given variants on every case; `done` hears of each case that is finished.
pub fn verify_cases(
    device: &dyn Device,
    cases: &[WorkloadCase<'_>],
    variants: &[&'static VariantSpec],
    limits: Limits,
    done: impl Fn(&WorkloadCase<'_>) + Sync,
) -> Result<Report, WorkloadError> {
    let verify = |case: &WorkloadCase<'_>| {
        let report = verify_case(device, case, variants, limits);
        done(case);
        report
    };
    let mut all = Report::default();
    verify_each(device, cases, verify)?.into_iter().for_each(|report| all.extend(report));
    Ok(all)
}

/// Verifies in parallel unless the device is the CPU: most of the time goes into the plain reference and, the first time,
/// into compiling kernels.
pub(crate) fn verify_each<T: Sync>(
    device: &dyn Device,
    cases: &[T],
    verify: impl Fn(&T) -> Result<Report, WorkloadError> + Sync,
) -> Result<Vec<Report>, WorkloadError> {
    if device.threads().is_none() {
        cases.par_iter().map(&verify).collect()
    } else {
        cases.iter().map(&verify).collect()
    }
}

/// Has a device compile in the background what [`verify_cases`] will ask for. Returns at once.
pub fn compile_later(
    device: &dyn Device,
    cases: &[WorkloadCase<'_>],
    variants: &[&'static VariantSpec],
    limits: Limits,
) -> Result<(), WorkloadError> {
    for case in cases {
        let problem = limits.shrink(case)?;
        let fitting = variants.iter().filter(|variant| device.supports(variant, &problem).is_ok());
        fitting.for_each(|variant| device.compile_later(variant, &problem));
    }
    Ok(())
}

/// Runs the given variants on a case and compares them with the reference.
/// [`WorkloadError::Problem`] and [`WorkloadError::Memory`]; errors of the device are in the report.
pub(crate) fn verify_case(
    device: &dyn Device,
    case: &WorkloadCase<'_>,
    variants: &[&'static VariantSpec],
    limits: Limits,
) -> Result<Report, WorkloadError> {
    let problem = limits.shrink(case)?;
    let (fitting, skipped) = fitting(device, case, variants, &problem);
    let mut report = Report { checked: Vec::new(), skipped };
    if fitting.is_empty() {
        return Ok(report);
    }
    memory::ensure_room(
        format_args!("checking workload `{}`", case.workload.name),
        memory::of_reference(&problem, true) + memory::of_inputs(&problem),
    )?;
    let inputs = case.inputs(&problem)?;
    let oracle = Oracle::new(&problem, &inputs, &fitting);
    for variant in fitting {
        let label = case.label(&[variant], &problem);
        let ran = device
            .prepare(&[variant], &problem, &inputs)
            .and_then(|mut prepared| prepared.run_twice(variant.id));
        let checks = ran.map(|outputs| oracle.check(&outputs, variant, &problem));
        report.checked.push(Verification::of(label, checks));
    }
    Ok(report)
}

/// The variants that take a problem of a case, and why the others do not.
pub fn fitting(
    device: &dyn Device,
    case: &WorkloadCase<'_>,
    variants: &[&'static VariantSpec],
    problem: &Problem,
) -> (Vec<&'static VariantSpec>, Vec<Skip>) {
    let (mut fitting, mut skipped) = (Vec::new(), Vec::new());
    for &variant in variants {
        let Err(error) = device.supports(variant, problem) else {
            fitting.push(variant);
            continue;
        };
        // The row names the variant already.
        let reason = match error {
            DeviceError::Unsupported { reason, .. } => reason,
            other => other.to_string(),
        };
        skipped.push(Skip { label: case.label(&[variant], problem), reason });
    }
    (fitting, skipped)
}
