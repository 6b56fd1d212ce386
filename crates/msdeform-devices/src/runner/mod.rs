//! Backends that compute cases, and the check of one case.

mod coverage;
mod cpu;
mod cuda;
mod rules;

use std::fmt;

use msdeform::DType;

use crate::HostTensors;
use crate::case::Case;
use crate::guarded::Trespass;
use crate::oracle::{Expected, Verdict, expect_with_allowances};

pub use coverage::{Counts, Coverage};
pub use cpu::{CpuRunner, run_plan};
pub use cuda::CudaRunner;
pub use rules::{CpuRules, CudaRules, Resolved, Rules};

/// A backend that computes cases.
pub trait Runner: Sync {
    /// What it takes.
    fn rules(&self) -> &dyn Rules;

    /// A worker, which computes one case after the other; several may work at once.
    ///
    /// # Errors
    /// The errors of the device.
    fn worker(&self) -> Result<Box<dyn Worker + '_>, String>;

    /// Gives back everything that is kept for later: code, plans, memory.
    fn settle(&self) {}

    /// Bytes of the device's memory in use; `None` for the CPU.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
}

/// What a worker is doing. Only running must not take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Preparing or compiling.
    Preparing,
    /// Waiting for kernels.
    Running,
}

/// Computes one case after the other.
pub trait Worker {
    /// Runs a case into poisoned memory and returns what was written, in the order of the tensors.
    ///
    /// # Errors
    /// A refusal, or what went wrong.
    fn run(
        &mut self,
        case: &Case,
        inputs: &HostTensors,
        phase: &mut dyn FnMut(Phase),
    ) -> Result<Ran, Fault>;
}

/// A case that ran to its end.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// The tensors that the call writes.
    pub written: Vec<Vec<u8>>,
    /// Kernels launched.
    pub launches: u64,
}

/// A case that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The variant that was named does not take it.
    Refused(String),
    /// It went wrong.
    Failed(String),
    /// It went wrong, and nothing will work on this device any more.
    DeviceLost(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Failed(reason) => f.write_str(reason),
            Self::DeviceLost(reason) => write!(f, "the device is lost: {reason}"),
        }
    }
}

impl From<Trespass> for Fault {
    fn from(trespass: Trespass) -> Self {
        Self::Failed(trespass.to_string())
    }
}

/// A case that was computed and compared.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The variant and its configuration.
    pub resolved: Resolved,
    /// How each tensor compares.
    pub verdicts: Vec<(DType, Verdict)>,
    /// Kernels launched.
    pub launches: u64,
    /// Bytes of its tensors.
    pub bytes: u64,
}

impl Checked {
    /// The first thing that is wrong.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.verdicts.iter().find_map(|(_, verdict)| verdict.fault.as_deref())
    }
}

/// Runs a case and compares it with the reference.
///
/// # Errors
/// A refusal, or what kept it from being compared; what was compared and is wrong is in the verdicts.
pub fn check(
    rules: &dyn Rules,
    worker: &mut dyn Worker,
    case: &Case,
    phase: &mut dyn FnMut(Phase),
) -> Result<Checked, Fault> {
    let resolved = rules.resolve(case).map_err(Fault::Refused)?;
    phase(Phase::Preparing);
    let inputs = case.inputs();
    let expected = expect_with_allowances(case, &inputs);
    let ran = worker.run(case, &inputs, phase);
    phase(Phase::Preparing);
    let Ran { written, launches } = ran?;
    let read = inputs.iter().map(|(role, _)| case.problem.bytes_of(role));
    let bytes = read.sum::<usize>() + written.iter().map(Vec::len).sum::<usize>();
    let compare = |(expected, bytes): (&Expected, &Vec<u8>)| {
        (expected.dtype, expected.compare(bytes, expected.dtype.rel_l2_bound()))
    };
    let verdicts = expected.iter().zip(&written).map(compare).collect();
    Ok(Checked { resolved, verdicts, launches, bytes: bytes as u64 })
}
