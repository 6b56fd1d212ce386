//! Plans of the CPU by problem: the layers of a model have the same shapes and run one after the other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use msdeform::cpu::is_for_one_thread;
use msdeform::{CpuOptions, CpuPlan, PlanCache, Problem};

/// Plans that are kept: a few for a model, for a few sizes of its images.
const PLANS: usize = 32;

/// Plans that no call uses now.
pub(crate) struct Plans(Mutex<PlanCache<Problem, CpuPlan>>);

/// Those of this process.
pub(crate) static SHARED: Plans = Plans::new();

impl Plans {
    const fn new() -> Self {
        Self(Mutex::new(PlanCache::new(PLANS)))
    }

    /// Runs something with a plan that is the caller's alone. Calls at the same time have one each; after an error it is dropped.
    pub(crate) fn with<T>(
        &self,
        problem: &Problem,
        run: impl FnOnce(&mut CpuPlan) -> Result<T, msdeform::Error>,
    ) -> Result<T, msdeform::Error> {
        let found = self.cache().take(|of| of == problem);
        let (key, mut plan) = match found {
            Some(found) => found,
            None => (problem.clone(), new_plan(problem)?),
        };
        let result = run(&mut plan)?;
        let bytes = plan.workspace_bytes();
        let dropped = self.cache().put(key, plan, bytes);
        // Outside of the lock: this may be much memory to give back.
        drop(dropped);
        Ok(result)
    }

    fn cache(&self) -> MutexGuard<'_, PlanCache<Problem, CpuPlan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_plan(problem: &Problem) -> Result<CpuPlan, msdeform::Error> {
    // Without a number the threads are those of rayon's pool, which candle computes on as well.
    let threads = is_for_one_thread(problem).then_some(1);
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
        let count = || plans.cache().len();
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
}
