//! Plans of the processor by what they are for: the layers of a model have the same shapes and run one after the other.

use std::sync::{Mutex, PoisonError};

use msdeform::{CpuOptions, CpuPlan, Problem};

/// Plans that are kept: a few for a model, for a few sizes of its images.
const PLANS: usize = 32;

/// Scratch memory that idle plans may keep between them.
const SCRATCH_BYTES: usize = 256 << 20;

/// Below this many products of samples and channels a call is done before another thread wakes up.
const ONE_THREAD_BELOW: usize = 1 << 16;

/// Those that nobody uses now, the most recently used last.
pub(crate) struct Plans(Mutex<Vec<CpuPlan>>);

/// Those of this process.
pub(crate) static SHARED: Plans = Plans::new();

impl Plans {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Runs something with a plan that is the caller's alone. Calls at the same time have one each; after an error it is dropped.
    pub(crate) fn with<T>(
        &self,
        problem: &Problem,
        run: impl FnOnce(&mut CpuPlan) -> Result<T, msdeform::Error>,
    ) -> Result<T, msdeform::Error> {
        let mut plan = match self.take(problem) {
            Some(plan) => plan,
            None => new_plan(problem)?,
        };
        let result = run(&mut plan)?;
        self.give_back(plan);
        Ok(result)
    }

    fn take(&self, problem: &Problem) -> Option<CpuPlan> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().rposition(|plan| plan.problem() == problem);
        at.map(|at| idle.remove(at))
    }

    /// Keeps a plan for the next call, and no more than there is room for.
    fn give_back(&self, plan: CpuPlan) {
        let mut dropped = Vec::new();
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
}

fn new_plan(problem: &Problem) -> Result<CpuPlan, msdeform::Error> {
    let products = problem.weights_len().saturating_mul(problem.channels());
    // Without a number the threads are those of rayon's pool, which candle computes on as well.
    let threads = (products < ONE_THREAD_BELOW).then_some(1);
    CpuPlan::new(problem, &CpuOptions { threads, isa: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(queries: usize) -> Problem {
        Problem::builder().channels(8).queries(queries).levels([(2, 3)]).build().unwrap()
    }

    #[test]
    fn a_plan_is_used_again_unless_its_call_failed() {
        let (plans, of) = (Plans::new(), problem(5));
        let count = || plans.0.lock().unwrap().len();
        for _ in 0..3 {
            assert!(plans.with(&of, |plan| Ok(*plan.problem() == of)).unwrap());
            assert_eq!(count(), 1);
        }
        // Two at once have one each.
        plans.with(&of, |_| plans.with(&of, |_| Ok(()))).unwrap();
        assert_eq!(count(), 2);
        let failed =
            plans.with(&of, |_| Err::<(), _>(msdeform::Error::TooLarge { tensor: "value" }));
        assert!(failed.is_err());
        assert_eq!(count(), 1);
    }

    #[test]
    fn the_least_recently_used_is_dropped() {
        let plans = Plans::new();
        for queries in 0..PLANS {
            plans.with(&problem(queries), |_| Ok(())).unwrap();
        }
        plans.with(&problem(0), |_| Ok(())).unwrap();
        plans.with(&problem(PLANS), |_| Ok(())).unwrap();
        assert_eq!(plans.0.lock().unwrap().len(), PLANS);
        assert!(plans.take(&problem(1)).is_none());
        assert!(plans.take(&problem(0)).is_some() && plans.take(&problem(2)).is_some());
    }
}
