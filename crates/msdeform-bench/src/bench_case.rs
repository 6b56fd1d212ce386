//! Verifying and timing variants on one case together, so that every time has its error beside it.

use msdeform::VariantSpec;

use crate::device::{Device, DeviceError};
use crate::verify::{Limits, Report, Skip, verify_case};
use crate::workload::WorkloadError;
use crate::{Budget, Case, Measurement, measure};

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
    let mut report = Report::default();
    let mut fitting = Vec::new();
    for &variant in variants {
        match device.supports(variant, &problem) {
            Ok(()) => fitting.push(variant),
            Err(DeviceError::Unsupported { reason, .. }) => {
                report.skipped.push(Skip { label: case.label(variant, &problem), reason });
            }
            Err(other) => return Err(other.into()),
        }
    }
    if fitting.is_empty() {
        return Ok((Vec::new(), report));
    }
    if let Some(limits) = limits {
        report.extend(verify_case(device, case, &fitting, limits)?);
    }
    let inputs = case.inputs(&problem);
    let mut measurements = Vec::with_capacity(fitting.len());
    for variant in fitting {
        let mut measurement = measure(device, case, &problem, &inputs, variant, budget)?;
        if let Some(check) = report.checked.iter().find(|check| check.label.variant == variant.id) {
            measurement.rel_l2 = check.worst_rel_l2();
        }
        measurements.push(measurement);
    }
    fill_speedups(device, &mut measurements);
    Ok((measurements, report))
}

/// Relates every time to that of the baseline of its direction, where that was timed too.
fn fill_speedups(device: &dyn Device, measurements: &mut [Measurement]) {
    for direction in msdeform::Direction::ALL {
        let Some(baseline) = device.baseline(direction) else { continue };
        let Some(baseline_us) = measurements
            .iter()
            .find(|m| m.label.variant == baseline.id)
            .map(|m| m.statistics.median_us)
        else {
            continue;
        };
        for measurement in measurements.iter_mut() {
            if measurement.label.direction == direction.name() {
                measurement.speedup = Some(baseline_us / measurement.statistics.median_us);
            }
        }
    }
}
