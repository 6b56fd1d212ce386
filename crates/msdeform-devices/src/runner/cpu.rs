//! Cases on the CPU.

use msdeform::{CpuOptions, CpuPlan, cpu};

use super::{CpuRules, Fault, Rules, Runner};
use crate::HostTensors;
use crate::case::{Case, CaseMemory, VariantChoice};
use crate::device::{DeviceError, Prepared};

#[derive(Clone, Copy, Debug, Default)]
pub struct CpuRunner;

impl Runner for CpuRunner {
    fn rules(&self) -> &dyn Rules {
        &CpuRules
    }

    fn prepare<'a>(
        &'a self,
        case: &'a Case,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, Fault> {
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
        let plan = CpuPlan::new(&case.problem, &options);
        let plan = plan.map_err(|error| Fault::Failed(error.to_string()))?;
        Ok(Box::new(PreparedCase { case, plan, memory: memory(case, inputs) }))
    }
}

struct PreparedCase<'a> {
    case: &'a Case,
    plan: CpuPlan,
    memory: CaseMemory<'a>,
}

impl Prepared for PreparedCase<'_> {
    fn poison(&mut self) -> Result<(), DeviceError> {
        self.memory.written.poison();
        Ok(())
    }

    fn run(&mut self) -> Result<(), DeviceError> {
        launch(&mut self.plan, &mut self.memory)
            .map_err(|source| DeviceError::Run { variant: self.plan.isa().name(), source })
    }

    fn read(&mut self) -> Result<HostTensors, DeviceError> {
        Ok(self.memory.results()?)
    }

    /// What a call leaves in a plan must not reach the next one, and gradients are always the same. Every eighth case
    /// shows that, because a second run costs as much as another case.
    fn is_reproducible(&self) -> bool {
        self.case.seed.is_multiple_of(8)
    }
}

/// Runs a case on a plan for its problem, into poisoned memory: what was written.
pub fn run_plan(
    plan: &mut CpuPlan,
    case: &Case,
    inputs: &HostTensors,
) -> Result<HostTensors, Fault> {
    let mut memory = memory(case, inputs);
    launch(plan, &mut memory).map_err(|error| Fault::Failed(error.to_string()))?;
    memory.results().map_err(|trespass| Fault::Failed(trespass.to_string()))
}

/// The CPU must not read the borders of levels.
fn memory<'a>(case: &'a Case, inputs: &HostTensors) -> CaseMemory<'a> {
    CaseMemory::new(case, &inputs.clone().with_poisoned_borders(&case.problem))
}

fn launch(plan: &mut CpuPlan, memory: &mut CaseMemory<'_>) -> Result<(), msdeform::Error> {
    let read = memory.read.iter().map(|(role, buffer)| Ok((role, memory.view(role, buffer)?)));
    let read = read.collect::<Result<Vec<_>, msdeform::Error>>()?;
    let written = memory.written.iter_mut().map(|(role, buffer)| (role, buffer.view_mut()));
    plan.run(read, written)
}
