//! Cases on the CPU.

use msdeform::cpu::{self, CpuVariant};
use msdeform::{CpuOptions, CpuPlan, Isa};

use super::{Coverage, Resolved, Rules, Runner};
use crate::case::{CallMemory, Case, VariantChoice};
use crate::device::cpu::{PreparedCpu, Step};
use crate::device::{DeviceError, Ready, Result};
use crate::{HostTensors, Random};

#[derive(Clone, Copy, Debug, Default)]
pub struct CpuRunner;

fn variant_of(case: &Case) -> Result<&'static CpuVariant, String> {
    let mut variants = cpu::variants().iter().filter(|v| v.spec.direction == case.direction());
    let found = match &case.choice {
        VariantChoice::Own => variants.find(|variant| variant.isa == Isa::best()),
        VariantChoice::Named { variant, .. } => variants.find(|found| found.spec.id == variant),
    };
    found.ok_or_else(|| format!("no such variant: {:?}", case.choice))
}

/// Its rules are its instruction sets.
impl Rules for CpuRunner {
    fn choose(&self, case: &Case, random: &mut Random) -> Option<VariantChoice> {
        let fitting: Vec<_> = cpu::variants()
            .iter()
            .filter(|variant| variant.spec.direction == case.direction() && variant.is_available())
            .collect();
        let variant = fitting.get(random.below(fitting.len()))?.spec.id.to_owned();
        Some(VariantChoice::Named { variant, knobs: Vec::new() })
    }

    fn resolve(&self, case: &Case) -> Result<Resolved, String> {
        Ok(Resolved { variant: variant_of(case)?.spec.id, ..Resolved::default() })
    }

    fn universe(&self) -> Coverage {
        let mut universe = Coverage::default();
        for variant in cpu::variants().iter().filter(|variant| variant.is_available()) {
            universe.add_spec(&variant.spec, true);
            universe.add_other_outputs(&variant.spec);
        }
        universe
    }
}

impl Runner for CpuRunner {
    fn rules(&self) -> &dyn Rules {
        self
    }

    fn prepare<'a>(&'a self, case: &'a Case, inputs: &'a HostTensors) -> Result<Ready<'a>> {
        let variant = variant_of(case).map_err(|reason| DeviceError::Refused { reason })?;
        let isa = (case.choice != VariantChoice::Own).then_some(variant.isa);
        // Mostly the calling thread alone; the others test that parts fit together.
        let threads = [1, 1, 1, 1, 2, 3][case.seed as usize % 6];
        let plan = CpuPlan::new(&case.problem, &CpuOptions { threads: Some(threads), isa });
        let spec = &variant.spec;
        let plan = plan.map_err(|source| DeviceError::Run { variant: spec.id, source })?;
        let steps = vec![Step { spec, plan, memory: memory(case, inputs) }];
        // What a call leaves in a plan must not reach the next one, and gradients are always the same. Every eighth case shows
        // that, because a second run costs as much as another case.
        let is_reproducible = case.seed.is_multiple_of(8);
        Ok(Box::new(PreparedCpu { problem: case.problem.clone(), threads, steps, is_reproducible }))
    }
}

/// Runs a case on a plan for its problem, into poisoned memory: what was written.
pub fn run_plan(plan: &mut CpuPlan, case: &Case, inputs: &HostTensors) -> Result<HostTensors> {
    let mut memory = memory(case, inputs);
    let ran = memory.run(plan);
    ran.map_err(|source| DeviceError::Run { variant: plan.isa().name(), source })?;
    Ok(memory.results()?)
}

/// The CPU must not read the borders of levels.
fn memory<'a>(case: &'a Case, inputs: &HostTensors) -> CallMemory<'a> {
    CallMemory::of_case(case, &inputs.clone().with_poisoned_borders(&case.problem))
}
