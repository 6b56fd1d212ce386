//! Cases on the CPU.

use msdeform::Storage;
use msdeform::cpu::{self, CpuOptions, CpuPlan};

use super::{CpuRules, Fault, Phase, Ran, Rules, Runner, Worker};
use crate::HostTensors;
use crate::case::{Case, VariantChoice, Wants};
use crate::guarded::{Guarded, buffers, collect};

/// The CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuRunner {
    rules: CpuRules,
}

impl Runner for CpuRunner {
    fn rules(&self) -> &dyn Rules {
        &self.rules
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, String> {
        Ok(Box::new(CpuWorker))
    }
}

struct CpuWorker;

impl Worker for CpuWorker {
    fn run(
        &mut self,
        case: &Case,
        inputs: &HostTensors,
        phase: &mut dyn FnMut(Phase),
    ) -> Result<Ran, Fault> {
        let failed = |error: msdeform::Error| Fault::Failed(error.to_string());
        let isa = match &case.choice {
            VariantChoice::Own => None,
            VariantChoice::Named { variant, .. } => {
                let found = cpu::variants().iter().find(|found| found.spec.id == variant);
                Some(found.ok_or_else(|| Fault::Refused(format!("no variant {variant}")))?.isa)
            }
        };
        // Mostly the calling thread alone; the others test that parts fit together.
        let threads = [1, 1, 1, 1, 2, 3][case.seed as usize % 6];
        let options = CpuOptions { threads: Some(threads), isa };
        let mut plan = CpuPlan::new(&case.problem, &options).map_err(failed)?;
        phase(Phase::Running);
        let written = run_plan(&mut plan, case, inputs)?;
        // What a call leaves in a plan must not reach the next one, and its gradients are always the same.
        if case.seed.is_multiple_of(8) && run_plan(&mut plan, case, inputs)? != written {
            return Err(Fault::Failed(
                "a second call is not bitwise equal to the first".to_owned(),
            ));
        }
        Ok(Ran { written, launches: 1 })
    }
}

/// Runs a case on a plan for its problem, into poisoned memory: what was written, in the order of the tensors.
///
/// # Errors
/// The errors of the plan, or a write outside of a tensor.
pub fn run_plan(
    plan: &mut CpuPlan,
    case: &Case,
    inputs: &HostTensors,
) -> Result<Vec<Vec<u8>>, Fault> {
    // The CPU must not read the borders of levels.
    let inputs = inputs.clone().with_poisoned_borders(&case.problem);
    let mut buffers = buffers(case, &inputs);
    compute(plan, case, &mut buffers).map_err(|error| Fault::Failed(error.to_string()))?;
    Ok(collect(&buffers)?)
}

fn compute(
    plan: &mut CpuPlan,
    case: &Case,
    buffers: &mut [Guarded],
) -> Result<(), msdeform::Error> {
    let problem = &case.problem;
    let inputs = problem.operator().inputs.len() + usize::from(case.wants != Wants::Output);
    let (read, written) = buffers.split_at_mut(inputs);
    let mut views = Vec::with_capacity(inputs);
    for buffer in read {
        let Some(role) = buffer.role else { continue };
        let view = match role.storage() {
            Storage::Channels | Storage::Output => buffer.view(problem.format_of(role)),
            _ if problem.offsets().is_some() => buffer.source_view(case)?,
            _ => buffer.view(problem.format_of(role)),
        };
        views.push((role, view));
    }
    let results = written.iter_mut().filter_map(|buffer| {
        let role = buffer.role?;
        Some((role, buffer.view_mut(problem.format_of(role))))
    });
    plan.run(views, results)
}
