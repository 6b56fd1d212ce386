//! Plans of calls, shared by all nodes: the layers of a model have the same shapes and run one after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use msdeform::{CpuOptions, CpuPlan, PlanCache};

use crate::call::{Call, Key};
use crate::error::Error;

/// Plans that are kept: a few for a model, for a few sizes of its images.
const PLANS: usize = 32;

/// A plan. One run at a time has it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub plan: CpuPlan,
    /// Buffers for references, locations and weights that are widened to `f32`.
    pub widened: [Vec<f32>; 3],
}

impl Entry {
    fn new(call: &Call<'_>) -> Result<Self, Error> {
        // The threads are the session's.
        let plan = CpuPlan::new(&call.problem()?, &CpuOptions { threads: Some(1), isa: None })?;
        Ok(Self { plan, widened: Default::default() })
    }

    fn scratch_bytes(&self) -> usize {
        let widened = self.widened.iter().map(|numbers| 4 * numbers.capacity());
        self.plan.workspace_bytes() + widened.sum::<usize>()
    }
}

/// Plans that no run uses now.
#[derive(Debug)]
pub(crate) struct Plans(Mutex<PlanCache<Key, Entry>>);

impl Plans {
    /// Those of this process. They are dropped with the last node.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Plans>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let plans = Arc::new(Self(Mutex::new(PlanCache::new(PLANS))));
            *shared = Arc::downgrade(&plans);
            plans
        })
    }

    /// A plan for a call, which is the caller's alone until it is given back. Runs at the same time have one each.
    pub(crate) fn take(&self, call: &Call<'_>) -> Result<(Key, Entry), Error> {
        let found = self.cache().take(|key| call.has(key));
        found.map_or_else(|| Ok((call.key(), Entry::new(call)?)), Ok)
    }

    /// Keeps a plan for the next call.
    pub(crate) fn give_back(&self, (key, entry): (Key, Entry)) {
        let bytes = entry.scratch_bytes();
        let dropped = self.cache().put(key, entry, bytes);
        // Outside of the lock, because this may free much memory.
        drop(dropped);
    }

    fn cache(&self) -> MutexGuard<'_, PlanCache<Key, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
