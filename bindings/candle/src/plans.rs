//! Plans of the processor by what they are for: the layers of a model have the same shapes and run one after the other.

use std::sync::{Mutex, PoisonError};

use msdeform::{CpuOptions, CpuPlan, Problem};

use crate::Result;

/// Plans that are kept: a few for a model, for a few sizes of its images.
const PLANS: usize = 32;

/// Scratch memory that idle plans may keep between them.
const SCRATCH_BYTES: usize = 256 << 20;

/// Below this many products of samples and channels a call is done before another thread wakes up.
const ONE_THREAD_BELOW: usize = 1 << 16;

/// Those that nobody uses now, the most recently used last.
static IDLE: Mutex<Vec<CpuPlan>> = Mutex::new(Vec::new());

/// Runs something with a plan that is the caller's alone. Calls at the same time have one each.
pub(crate) fn with_plan<T>(
    problem: &Problem,
    run: impl FnOnce(&mut CpuPlan) -> std::result::Result<T, msdeform::Error>,
) -> Result<T> {
    let mut plan = take(problem)?;
    let result = run(&mut plan)?;
    give_back(plan);
    Ok(result)
}

fn take(problem: &Problem) -> Result<CpuPlan> {
    let found = {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().rposition(|plan| plan.problem() == problem);
        at.map(|at| idle.remove(at))
    };
    if let Some(plan) = found {
        return Ok(plan);
    }
    let products = problem.weights_len().saturating_mul(problem.channels());
    // Without a number the threads are those of rayon's pool, which candle computes on as well.
    let threads = (products < ONE_THREAD_BELOW).then_some(1);
    Ok(CpuPlan::new(problem, &CpuOptions { threads, isa: None })?)
}

/// Keeps a plan for the next call, and no more than there is room for.
fn give_back(plan: CpuPlan) {
    let mut dropped = Vec::new();
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = |idle: &[CpuPlan]| idle.iter().map(CpuPlan::workspace_bytes).sum::<usize>();
    while !idle.is_empty()
        && (idle.len() >= PLANS || scratch(&idle) + plan.workspace_bytes() > SCRATCH_BYTES)
    {
        dropped.push(idle.remove(0));
    }
    idle.push(plan);
    drop(idle);
    // Outside of the lock: this may be much memory to give back.
    drop(dropped);
}
