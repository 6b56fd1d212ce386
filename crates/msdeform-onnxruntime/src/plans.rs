//! Plans of calls, shared by all nodes: the layers of a model have the same shapes and run one after the other.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use msdeform::{CpuOptions, CpuPlan, Slice};

use crate::call::{Call, Key};
use crate::error::Error;

/// Plans that are kept: a few for a model, for a few sizes of its images.
const PLANS: usize = 32;

/// Scratch memory that idle plans may keep between them.
const SCRATCH_BYTES: usize = 256 << 20;

/// A plan, whoever has it alone.
#[derive(Debug)]
pub(crate) struct Entry {
    key: Key,
    pub plan: CpuPlan,
    /// Room for samples of the value's format beside others that are `f32`: references, locations, weights.
    pub widened: [Vec<f32>; 3],
}

impl Entry {
    fn new(call: &Call<'_>) -> Result<Self, Error> {
        // The threads are the session's.
        let plan = CpuPlan::new(&call.problem()?, &CpuOptions { threads: Some(1), isa: None })?;
        Ok(Self { key: call.key(), plan, widened: Default::default() })
    }

    fn scratch_bytes(&self) -> usize {
        let widened = self.widened.iter().map(|numbers| 4 * numbers.capacity());
        self.plan.workspace_bytes() + widened.sum::<usize>()
    }
}

/// Widens a tensor into a buffer, where it is not `f32` already.
pub(crate) fn widen<'a>(numbers: Slice<'a>, buffer: &'a mut Vec<f32>) -> Slice<'a> {
    let Slice::F16(halves) = numbers else { return numbers };
    buffer.clear();
    buffer.extend(halves.iter().map(|half| half.to_f32()));
    Slice::F32(buffer)
}

/// Those that nobody uses now, the most recently used last.
#[derive(Debug, Default)]
pub(crate) struct Plans(Mutex<Vec<Entry>>);

impl Plans {
    /// Those of this process, for as long as somebody has them.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Plans>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let plans = Arc::new(Self::default());
            *shared = Arc::downgrade(&plans);
            plans
        })
    }

    /// A plan for a call, which is the caller's alone until it is given back. Runs at the same time have one each.
    pub(crate) fn take(&self, call: &Call<'_>) -> Result<Entry, Error> {
        let found = {
            let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = idle.iter().rposition(|entry| call.has(&entry.key));
            at.map(|at| idle.remove(at))
        };
        found.map_or_else(|| Entry::new(call), Ok)
    }

    /// Keeps a plan for the next call, and no more than there is room for.
    pub(crate) fn give_back(&self, entry: Entry) {
        let mut dropped = Vec::new();
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = |idle: &[Entry]| idle.iter().map(Entry::scratch_bytes).sum::<usize>();
        while !idle.is_empty()
            && (idle.len() >= PLANS || scratch(&idle) + entry.scratch_bytes() > SCRATCH_BYTES)
        {
            dropped.push(idle.remove(0));
        }
        idle.push(entry);
        drop(idle);
        // Outside of the lock: this may be much memory to give back.
        drop(dropped);
    }
}
