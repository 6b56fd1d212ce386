//! Verifying and timing variants on cases, so that every time comes with its error.
//!
//! Everything that the cases need is compiled first, in parallel. Then the cases are verified, then timed one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::device::{Device, DeviceError, KnobbedVariant};
use crate::workload::WorkloadError;
use crate::{Budget, Measurement, WorkloadCase};
use msdeform::{Direction, Problem, VariantSpec};

use crate::measure::measure;
use crate::verify::{Limits, Report, Verification, fitting, verify_case, verify_each};

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

#[derive(Clone, Debug)]
pub struct Planned<'a> {
    pub case: WorkloadCase<'a>,
    pub variants: Vec<&'static VariantSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Kernels are compiled, where a device has any.
    Compiling,
    Verifying,
    Timing,
}

#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A stage begins, with so many steps.
    Begin(Stage, usize),
    /// A step is done; of this workload, in this format.
    Done(&'a WorkloadCase<'a>),
}

/// Times the variants that fit each case, after checking them against the reference unless `limits` is `None`. Refused
/// variants are in the report, with the reason; an inexact variant is timed too, with its error.
/// [`BenchError::Workload`], and [`BenchError::Device`] if a variant that fits fails to run.
pub fn bench_cases(
    device: &dyn Device,
    planned: &[Planned<'_>],
    budget: Budget,
    limits: Option<Limits>,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<(Vec<Measurement>, Report), BenchError> {
    let mut fits = Vec::with_capacity(planned.len());
    let mut all = Report::default();
    for Planned { case, variants } in planned {
        let problem = case.problem()?;
        let (variants, skipped) = fitting(device, case, variants, &problem);
        all.skipped.extend(skipped);
        fits.push((case, problem, variants));
    }
    fits.retain(|(_, _, variants)| !variants.is_empty());

    let mut wanted = Vec::new();
    for (case, problem, variants) in &fits {
        // The case as it is timed, and as it is verified: few and many rows are different kernels.
        let verified = limits.map(|limits| limits.shrink(case)).transpose()?;
        for problem in [Some(problem.clone()), verified].into_iter().flatten() {
            let choices = variants.iter().map(|&variant| KnobbedVariant::own(variant));
            wanted.extend(choices.map(|choice| (choice, problem.clone(), *case)));
        }
    }
    progress(Progress::Begin(Stage::Compiling, wanted.len()));
    let compiled = |at: usize| progress(Progress::Done(wanted[at].2));
    let choices: Vec<_> = wanted.iter().map(|(choice, problem, _)| (choice, problem)).collect();
    compile_in_turn(device, &choices, None, &compiled);

    progress(Progress::Begin(Stage::Verifying, fits.len()));
    let verify = |(case, _, variants): &(&WorkloadCase<'_>, Problem, Vec<&'static VariantSpec>)| {
        let report = limits.map(|limits| verify_case(device, case, variants, limits));
        progress(Progress::Done(case));
        report.transpose().map(Option::unwrap_or_default)
    };
    let reports = verify_each(device, &fits, verify)?;

    progress(Progress::Begin(Stage::Timing, fits.len()));
    let mut measurements = Vec::new();
    for ((case, problem, variants), report) in fits.iter().zip(reports) {
        measurements.extend(time_fitting(device, case, problem, variants, budget, &report)?);
        all.extend(report);
        progress(Progress::Done(case));
    }
    Ok((measurements, all))
}

/// Times variants on a case, each with the error that the report of the same case has of it.
fn time_fitting(
    device: &dyn Device,
    case: &WorkloadCase<'_>,
    problem: &Problem,
    fitting: &[&'static VariantSpec],
    budget: Budget,
    report: &Report,
) -> Result<Vec<Measurement>, BenchError> {
    let inputs = case.inputs(problem)?;
    let mut measurements = Vec::with_capacity(fitting.len());
    for &variant in fitting {
        let mut timed = measure(device, case, (problem, &inputs), &[variant], budget)?;
        if let Some(check) = report.checked.iter().find(|check| check.label.variant == variant.id) {
            timed.iter_mut().for_each(|measurement| measurement.rel_l2 = check.worst_rel_l2());
        }
        measurements.extend(timed);
    }
    Ok(measurements)
}

/// Times a training step on a case: the forward and the backward among `variants`, or what the device
/// would choose, as one. Both are checked against the reference first unless `limits` is `None`.
/// [`BenchError::Workload`], and [`BenchError::Device`] if a variant refuses the case or fails to run.
pub fn bench_step(
    device: &dyn Device,
    case: &WorkloadCase<'_>,
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
    let mut timed = measure(device, case, (&problem, &inputs), &[forward, backward], budget)?;
    let errors = || report.checked.iter().map(Verification::worst_rel_l2);
    if !report.checked.is_empty() && !errors().any(f64::is_nan) {
        timed.iter_mut().for_each(|step| step.rel_l2 = errors().fold(0.0, f64::max));
    }
    Ok((timed, report))
}

/// Compiles choices for problems on every core, the first ones first, until `end` if there is one; `done` hears of each. What
/// time leaves out is compiled when it is needed.
pub(crate) fn compile_in_turn(
    device: &dyn Device,
    wanted: &[(&KnobbedVariant, &Problem)],
    end: Option<Instant>,
    done: &(dyn Fn(usize) + Sync),
) {
    let next = AtomicUsize::new(0);
    // One after the other from the front, on every core: a parallel iterator would start in the middle too.
    rayon::broadcast(|_| {
        while end.is_none_or(|end| Instant::now() < end) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((choice, problem)) = wanted.get(at) else { return };
            device.compile(std::slice::from_ref(choice), problem);
            done(at);
        }
    });
}
