//! Cases on the processor.

use msdeform::Role;
use msdeform::cpu::{self, CpuOptions, CpuPlan, GradientsMut, OffsetGradientsMut};

use crate::case::{Case, VariantWish, Wants};
use crate::memory::{Guarded, buffers, collect};
use crate::rules::{CpuRules, Rules};
use crate::runner::{Fault, Phase, Ran, Runner, Worker};
use crate::tensors::Inputs;

/// The processor.
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
        inputs: &Inputs,
        phase: &mut dyn FnMut(Phase),
    ) -> Result<Ran, Fault> {
        let failed = |error: msdeform::Error| Fault::Failed(error.to_string());
        let isa = match &case.choice {
            VariantWish::Own => None,
            VariantWish::Named { variant, .. } => {
                let found = cpu::variants().iter().find(|found| found.spec.id == variant);
                Some(found.ok_or_else(|| Fault::Refused(format!("no variant {variant}")))?.isa)
            }
        };
        // Most on the calling thread; the others see that parts fit together.
        let threads = [1, 1, 1, 1, 2, 3][case.seed as usize % 6];
        let options = CpuOptions { threads: Some(threads), isa };
        let mut plan = CpuPlan::new(&case.problem, &options).map_err(failed)?;
        phase(Phase::Running);
        let written = run_plan(&mut plan, case, inputs)?;
        // What a call leaves in a plan must not reach the next one, and its gradients are always the same.
        if case.seed.is_multiple_of(8) && run_plan(&mut plan, case, inputs)? != written {
            return Err(Fault::Failed("a second call gives other bits".to_owned()));
        }
        Ok(Ran { written, launches: 1 })
    }
}

/// Runs a case on a plan for its problem, into poisoned memory: what was written, in the order of the tensors.
///
/// # Errors
/// What the plan says, or a write beside a tensor.
pub fn run_plan(plan: &mut CpuPlan, case: &Case, inputs: &Inputs) -> Result<Vec<Vec<u8>>, Fault> {
    // The processor does without the borders of levels.
    let inputs = inputs.with_poisoned_borders(case);
    let mut buffers = buffers(case, &inputs);
    compute(plan, case, &mut buffers).map_err(|error| Fault::Failed(error.to_string()))?;
    Ok(collect(&buffers, &inputs)?)
}

fn compute(
    plan: &mut CpuPlan,
    case: &Case,
    buffers: &mut [Guarded],
) -> Result<(), msdeform::Error> {
    let (dtype, sampling) = (case.problem.dtype(), case.problem.sampling_dtype());
    let inputs = case.problem.operator().inputs.len() + usize::from(case.wants != Wants::Output);
    let (read, written) = buffers.split_at_mut(inputs);
    if case.problem.offsets().is_some() {
        return compute_from_offsets(plan, case, read, written);
    }
    let (value, locations, weights) =
        (read[0].view(dtype), read[1].view(sampling), read[2].view(sampling));
    if case.wants == Wants::Output {
        return plan.forward(value, locations, weights, written[0].view_mut(dtype));
    }
    let mut gradients = GradientsMut::new();
    for buffer in written {
        gradients = match buffer.role {
            Some(Role::GradValue) => gradients.value(buffer.view_mut(dtype)),
            Some(Role::GradLocations) => gradients.locations(buffer.view_mut(sampling)),
            _ => gradients.weights(buffer.view_mut(sampling)),
        };
    }
    plan.backward(value, locations, weights, read[3].view(dtype), gradients)
}

fn compute_from_offsets(
    plan: &mut CpuPlan,
    case: &Case,
    read: &[Guarded],
    written: &mut [Guarded],
) -> Result<(), msdeform::Error> {
    let dtype = case.problem.dtype();
    let value = read[0].view(dtype);
    let (references, offsets, logits) =
        (read[1].source_view(case)?, read[2].source_view(case)?, read[3].source_view(case)?);
    if case.wants == Wants::Output {
        let output = written[0].view_mut(dtype);
        return plan.forward_from_offsets(value, references, offsets, logits, output);
    }
    let mut gradients = OffsetGradientsMut::new();
    for buffer in written {
        let role = buffer.role.unwrap_or(Role::GradValue);
        let view = buffer.view_mut(case.problem.format_of(role));
        gradients = match role {
            Role::GradReferences => gradients.references(view),
            Role::GradOffsets => gradients.offsets(view),
            Role::GradLogits => gradients.logits(view),
            _ => gradients.value(view),
        };
    }
    let upstream = read[4].view(dtype);
    plan.backward_from_offsets(value, references, offsets, logits, upstream, gradients)
}
