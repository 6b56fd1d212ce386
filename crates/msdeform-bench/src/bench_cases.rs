//! Many cases in the order in which they cost least: everything that they need is compiled first, side by side, then verified,
//! then timed, one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use msdeform::{Problem, VariantSpec};
use msdeform_devices::Case;
use msdeform_devices::device::{Device, KnobbedVariant};
use msdeform_devices::workload::WorkloadError;
use rayon::prelude::*;

use crate::bench_case::{BenchError, fitting, time_fitting};
use crate::verify::{Limits, Report, verify_case};
use crate::{Budget, Measurement};

/// A case and the variants that are run on it.
#[derive(Clone, Debug)]
pub struct Planned<'a> {
    /// What is computed.
    pub case: Case<'a>,
    /// By which variants.
    pub variants: Vec<&'static VariantSpec>,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Kernels are compiled, where a device has any.
    Compiling,
    /// Results are compared with the reference.
    Verifying,
    /// Calls are timed.
    Timing,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A stage begins, with so many steps.
    Begin(Stage, usize),
    /// A step is done; of this workload, in this format.
    Done(&'a Case<'a>),
}

/// Times the variants that fit each case, after checking all of them against the reference. As [`crate::bench_case`], which does
/// this case by case.
///
/// # Errors
/// As there.
pub fn bench_cases(
    device: &dyn Device,
    planned: &[Planned<'_>],
    budget: Budget,
    limits: Limits,
    say: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<(Vec<Measurement>, Report), BenchError> {
    let mut fits = Vec::with_capacity(planned.len());
    let mut all = Report::default();
    for Planned { case, variants } in planned {
        let problem = case.problem()?;
        let (variants, skipped) = fitting(device, case, variants, &problem)?;
        all.extend(skipped);
        fits.push((case, problem, variants));
    }
    fits.retain(|(_, _, variants)| !variants.is_empty());

    let mut wanted = Vec::new();
    for (case, problem, variants) in &fits {
        // The case as it is timed, and as it is verified: few and many rows are different kernels.
        for problem in [problem.clone(), limits.shrink(case)?] {
            let choices = variants.iter().map(|&variant| KnobbedVariant::own(variant));
            wanted.extend(choices.map(|choice| (choice, problem.clone(), *case)));
        }
    }
    say(Progress::Begin(Stage::Compiling, wanted.len()));
    let compiled = |at: usize| say(Progress::Done(wanted[at].2));
    let choices: Vec<_> = wanted.iter().map(|(choice, problem, _)| (choice, problem)).collect();
    compile_in_turn(device, &choices, None, &compiled);

    say(Progress::Begin(Stage::Verifying, fits.len()));
    let verify = |(case, _, variants): &(&Case<'_>, Problem, Vec<&'static VariantSpec>)| {
        let report = verify_case(device, case, variants, limits);
        say(Progress::Done(case));
        report
    };
    let reports: Vec<Report> = if device.threads().is_none() {
        fits.par_iter().map(verify).collect::<Result<_, WorkloadError>>()?
    } else {
        fits.iter().map(verify).collect::<Result<_, WorkloadError>>()?
    };

    say(Progress::Begin(Stage::Timing, fits.len()));
    let mut measurements = Vec::new();
    for ((case, problem, variants), report) in fits.iter().zip(reports) {
        measurements.extend(time_fitting(device, case, problem, variants, budget, &report)?);
        all.extend(report);
        say(Progress::Done(case));
    }
    Ok((measurements, all))
}

/// Compiles choices for problems on every core, the first ones first, until `end` if there is one; `done` hears of each. What
/// time leaves out is compiled when it is asked for.
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
