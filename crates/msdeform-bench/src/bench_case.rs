//! Verifying and timing variants on one case together, so that every time has its error beside it.

use msdeform::{Direction, Problem, VariantSpec};
use msdeform_devices::Case;
use msdeform_devices::device::{Device, DeviceError, KnobbedVariant};
use msdeform_devices::workload::WorkloadError;

use crate::verify::{Limits, Report, Skip, verify_case};
use crate::{Budget, Measurement, measure, measure_step};

/// What can go wrong with a case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The workload does not make a problem.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Times the variants that fit a case, after checking them against the reference unless `limits` is
/// `None`. Refused variants are in the report, with the reason; an inexact one is timed all the
/// same, its error standing beside its time.
///
/// # Errors
/// [`BenchError::Workload`], and [`BenchError::Device`] if a variant that fits fails to run.
pub fn bench_case(
    device: &dyn Device,
    case: &Case<'_>,
    variants: &[&'static VariantSpec],
    budget: Budget,
    limits: Option<Limits>,
) -> Result<(Vec<Measurement>, Report), BenchError> {
    let problem = case.problem()?;
    let (fitting, mut report) = fitting(device, case, variants, &problem)?;
    if fitting.is_empty() {
        return Ok((Vec::new(), report));
    }
    let choices: Vec<KnobbedVariant> =
        fitting.iter().map(|&variant| KnobbedVariant::own(variant)).collect();
    device.compile(&choices, &problem);
    if let Some(limits) = limits {
        report.extend(verify_case(device, case, &fitting, limits)?);
    }
    let measurements = time_fitting(device, case, &problem, &fitting, budget, &report)?;
    Ok((measurements, report))
}

/// The variants that take a case, and why the others do not.
pub(crate) fn fitting(
    device: &dyn Device,
    case: &Case<'_>,
    variants: &[&'static VariantSpec],
    problem: &Problem,
) -> Result<(Vec<&'static VariantSpec>, Report), DeviceError> {
    let (mut fitting, mut report) = (Vec::new(), Report::default());
    for &variant in variants {
        match device.supports(variant, problem) {
            Ok(()) => fitting.push(variant),
            Err(DeviceError::Unsupported { reason, .. }) => {
                report.skipped.push(Skip { label: case.label(variant, problem), reason });
            }
            Err(other) => return Err(other),
        }
    }
    Ok((fitting, report))
}

/// Times variants on a case, each with the error that the report of the same case has of it.
pub(crate) fn time_fitting(
    device: &dyn Device,
    case: &Case<'_>,
    problem: &Problem,
    fitting: &[&'static VariantSpec],
    budget: Budget,
    report: &Report,
) -> Result<Vec<Measurement>, BenchError> {
    let inputs = case.inputs(problem)?;
    let mut measurements = Vec::with_capacity(fitting.len());
    for &variant in fitting {
        let mut timed = measure(device, case, problem, &inputs, variant, budget)?;
        if let Some(check) = report.checked.iter().find(|check| check.label.variant == variant.id) {
            timed.iter_mut().for_each(|measurement| measurement.rel_l2 = check.worst_rel_l2());
        }
        measurements.extend(timed);
    }
    Ok(measurements)
}

/// Times a training step on a case: the forward and the backward among `variants`, or what the device
/// would choose, as one. Both are checked against the reference first unless `limits` is `None`.
///
/// # Errors
/// [`BenchError::Workload`], and [`BenchError::Device`] if a variant refuses the case or fails to run.
pub fn bench_step(
    device: &dyn Device,
    case: &Case<'_>,
    variants: &[&'static VariantSpec],
    budget: Budget,
    limits: Option<Limits>,
) -> Result<(Vec<Measurement>, Report), BenchError> {
    let problem = case.problem()?;
    let choose = |direction| match variants.iter().find(|spec| spec.direction == direction) {
        Some(&named) => device.supports(named, &problem).map(|()| named),
        None => device.dispatch(&problem, direction),
    };
    let (forward, backward) = (choose(Direction::Forward)?, choose(Direction::Backward)?);
    let report = match limits {
        Some(limits) => verify_case(device, case, &[forward, backward], limits)?,
        None => Report::default(),
    };
    let inputs = case.inputs(&problem)?;
    let mut timed = measure_step(device, case, &problem, &inputs, forward, backward, budget)?;
    let errors = || report.checked.iter().map(crate::verify::Verification::worst_rel_l2);
    if !report.checked.is_empty() && !errors().any(f64::is_nan) {
        timed.iter_mut().for_each(|step| step.rel_l2 = errors().fold(0.0, f64::max));
    }
    Ok((timed, report))
}
