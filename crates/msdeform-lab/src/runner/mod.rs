//! Backends that compute cases, and the check of one case.

mod coverage;
mod cpu;
mod cuda;
mod rules;

use msdeform::DType;

use crate::HostTensors;
use crate::case::{Case, VariantChoice};
use crate::device::{DeviceError, Prepared, Ready, Result};
use crate::oracle::{Expected, Verdict, expect_with_allowances};

pub use coverage::{Counts, Coverage};
pub use cpu::{CpuRunner, run_plan};
pub use cuda::CudaRunner;
pub use rules::{CudaRules, Resolved, Rules};

/// A backend that computes cases; several may be computed at once.
pub trait Runner: Sync {
    fn rules(&self) -> &dyn Rules;

    /// A case with poisoned outputs, in memory whose surroundings are checked when results are read.
    fn prepare<'a>(&'a self, case: &'a Case, inputs: &'a HostTensors) -> Result<Ready<'a>>;

    /// Gives back everything that is kept for later: code, plans, memory.
    fn settle(&self) {}

    /// Bytes of the device's memory in use; `None` for the CPU.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
}

#[derive(Clone, Debug)]
pub struct Checked {
    pub resolved: Resolved,
    pub verdicts: Vec<(DType, Verdict)>,
    pub launches: u64,
    pub bytes: u64,
}

impl Checked {
    pub fn fault(&self) -> Option<&str> {
        self.verdicts.iter().find_map(|(_, verdict)| verdict.fault.as_deref())
    }
}

/// Runs a case and compares it with the reference.
pub fn check(runner: &dyn Runner, case: &Case) -> Result<Checked> {
    check_watched(runner, case, &mut |_| ())
}

/// As [`check`]; `is_running` hears when the kernels start and when they end, which must not take long.
pub(crate) fn check_watched(
    runner: &dyn Runner,
    case: &Case,
    is_running: &mut dyn FnMut(bool),
) -> Result<Checked> {
    let resolved =
        runner.rules().resolve(case).map_err(|reason| DeviceError::Refused { reason })?;
    let inputs = case.inputs();
    let expected = expect_with_allowances(case, &inputs);
    let mut prepared = runner.prepare(case, &inputs)?;
    is_running(true);
    let found = run(prepared.as_mut(), resolved.variant);
    is_running(false);
    let found = found?;
    let tensors = inputs.iter().chain(found.iter());
    let bytes: usize = tensors.map(|(role, _)| case.problem.bytes_of(role)).sum();
    let verdicts = compare(&expected, &found, &DType::rel_l2_bound);
    Ok(Checked { resolved, verdicts, launches: prepared.launches(), bytes: bytes as u64 })
}

/// The results of a run, or of two that must not differ in any bit.
fn run(prepared: &mut dyn Prepared, variant: &str) -> Result<HostTensors> {
    if prepared.is_reproducible() {
        return prepared.run_twice(variant);
    }
    prepared.run()?;
    prepared.read()
}

pub(crate) fn compute(
    runner: &dyn Runner,
    case: &Case,
    inputs: &HostTensors,
) -> Result<HostTensors> {
    let variant = match &case.choice {
        VariantChoice::Own => "of dispatch",
        VariantChoice::Named { variant, .. } => variant,
    };
    run(runner.prepare(case, inputs)?.as_mut(), variant)
}

/// Compares the tensors of a case, each with the bound of its dtype.
pub(crate) fn compare(
    expected: &[Expected],
    found: &HostTensors,
    bound: &dyn Fn(DType) -> f64,
) -> Vec<(DType, Verdict)> {
    let compare = |(expected, (_, found)): (&Expected, (_, &crate::Buffer))| {
        (expected.dtype, expected.compare_numbers(&found.to_f64(), bound(expected.dtype)))
    };
    expected.iter().zip(found.iter()).map(compare).collect()
}
