//! Plans that are kept between calls, by key.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Scratch memory that kept plans may hold together.
const SCRATCH_BYTES: usize = 256 << 20;

/// Plans by key, of which the least recently used are dropped.
///
/// A plan that only one call may use is taken out and put back after the call. A plan that calls may share is an `Arc`
/// that is found and cloned. The cache has no lock of its own: keep one per thread, or use [`SharedPlans`].
///
/// ```
/// use msdeform::PlanCache;
///
/// let mut cache = PlanCache::new(1);
/// assert_eq!(cache.put("first", 1, 0).len(), 0);
/// assert_eq!(cache.put("second", 2, 0), [1]);
/// assert_eq!(cache.take(|key| *key == "second"), Some(("second", 2)));
/// ```
#[derive(Debug)]
pub struct PlanCache<K, P> {
    /// The most recently used last.
    kept: Vec<Kept<K, P>>,
    most: usize,
    scratch_bytes: usize,
}

#[derive(Debug)]
struct Kept<K, P> {
    key: K,
    plan: P,
    scratch_bytes: usize,
}

impl<K, P> PlanCache<K, P> {
    /// A cache of at most `most` plans, which together hold at most 256 MiB of scratch memory.
    pub const fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, scratch_bytes: 0 }
    }

    /// The number of plans in the cache.
    pub const fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn place(&self, is_it: impl Fn(&K) -> bool) -> Option<usize> {
        self.kept.iter().rposition(|kept| is_it(&kept.key))
    }

    /// The plan whose key fits. It becomes the most recently used.
    pub fn find(&mut self, is_it: impl Fn(&K) -> bool) -> Option<&P> {
        let at = self.place(is_it)?;
        self.kept[at..].rotate_left(1);
        self.kept.last().map(|kept| &kept.plan)
    }

    /// Takes the plan whose key fits, with its key, out of the cache.
    pub fn take(&mut self, is_it: impl Fn(&K) -> bool) -> Option<(K, P)> {
        let at = self.place(is_it)?;
        let Kept { key, plan, scratch_bytes } = self.kept.remove(at);
        self.scratch_bytes -= scratch_bytes;
        Some((key, plan))
    }

    /// Keeps a plan that holds `scratch_bytes` of scratch memory. Returns the plans that make room for it, so that a
    /// caller with a lock can drop them after unlocking.
    #[must_use = "dropping plans frees memory, which is best done outside of a lock"]
    pub fn put(&mut self, key: K, plan: P, scratch_bytes: usize) -> Vec<P> {
        let mut dropped = Vec::new();
        while !self.kept.is_empty()
            && (self.kept.len() >= self.most
                || self.scratch_bytes.saturating_add(scratch_bytes) > SCRATCH_BYTES)
        {
            let oldest = self.kept.remove(0);
            self.scratch_bytes -= oldest.scratch_bytes;
            dropped.push(oldest.plan);
        }
        self.scratch_bytes += scratch_bytes;
        self.kept.push(Kept { key, plan, scratch_bytes });
        dropped
    }
}

/// A [`PlanCache`] that all threads of a process share. Its lock is not held while a plan is made, used or dropped: making
/// one may compile for seconds, and dropping one may free much memory.
///
/// ```
/// use msdeform::{Error, SharedPlans};
///
/// static PLANS: SharedPlans<u32, Vec<f32>> = SharedPlans::new(8);
///
/// let make = || Ok::<_, Error>((7, vec![0.0; 3]));
/// let bytes = |plan: &Vec<f32>| 4 * plan.capacity();
/// let length = PLANS.with(|key| *key == 7, make, bytes, |plan| Ok(plan.len()))?;
/// # assert_eq!(length, 3);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct SharedPlans<K, P>(Mutex<PlanCache<K, P>>);

impl<K, P> SharedPlans<K, P> {
    /// A cache of at most `most` plans; see [`PlanCache::new`].
    pub const fn new(most: usize) -> Self {
        Self(Mutex::new(PlanCache::new(most)))
    }

    fn cache(&self) -> MutexGuard<'_, PlanCache<K, P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call with a plan that only this call may use. Calls at the same time have one each. After an error the plan is
    /// dropped, otherwise it is kept with the scratch memory that it holds then.
    ///
    /// # Errors
    /// Those of `make` and `run`.
    pub fn with<T, E>(
        &self,
        is_it: impl Fn(&K) -> bool,
        make: impl FnOnce() -> Result<(K, P), E>,
        scratch_bytes: impl FnOnce(&P) -> usize,
        run: impl FnOnce(&mut P) -> Result<T, E>,
    ) -> Result<T, E> {
        let known = self.cache().take(is_it);
        let (key, mut plan) = known.map_or_else(make, Ok)?;
        let result = run(&mut plan)?;
        let bytes = scratch_bytes(&plan);
        let dropped = self.cache().put(key, plan, bytes);
        drop(dropped);
        Ok(result)
    }

    /// A plan that calls share, such as an `Arc` of one.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn shared<E>(
        &self,
        is_it: impl Fn(&K) -> bool,
        make: impl FnOnce() -> Result<(K, P), E>,
    ) -> Result<P, E>
    where
        P: Clone,
    {
        let known = self.cache().find(is_it).cloned();
        if let Some(plan) = known {
            return Ok(plan);
        }
        let (key, plan) = make()?;
        let dropped = self.cache().put(key, plan.clone(), 0);
        drop(dropped);
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_used_again_unless_its_call_failed() {
        let plans = SharedPlans::new(4);
        let count = || plans.cache().len();
        let with = |run: &dyn Fn() -> Result<(), ()>| {
            plans.with(|&key| key == 5, || Ok((5, "plan")), |_| 0, |_| run())
        };
        for _ in 0..3 {
            with(&|| Ok(())).unwrap();
            assert_eq!(count(), 1);
        }
        // Two at once have one each.
        with(&|| with(&|| Ok(()))).unwrap();
        assert_eq!(count(), 2);
        assert_eq!(with(&|| Err(())), Err(()));
        assert_eq!(count(), 1);
    }

    #[test]
    fn a_shared_plan_is_made_once() {
        let plans = SharedPlans::new(4);
        assert_eq!(plans.shared(|&key| key == 1, || Ok::<_, ()>((1, "first"))), Ok("first"));
        assert_eq!(plans.shared(|&key| key == 1, || Err(())), Ok("first"));
        assert_eq!(plans.shared(|&key| key == 2, || Err(())), Err(()));
    }

    #[test]
    fn the_least_recently_used_is_dropped() {
        let mut cache = PlanCache::new(3);
        for key in 0..3 {
            assert!(cache.put(key, (), 0).is_empty());
        }
        assert!(cache.find(|&key| key == 0).is_some());
        assert_eq!(cache.put(3, (), 0).len(), 1);
        assert!(cache.find(|&key| key == 1).is_none());
        assert_eq!(cache.take(|&key| key == 0), Some((0, ())));
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn scratch_memory_is_bounded_and_one_large_plan_is_kept() {
        let mut cache = PlanCache::new(9);
        for key in 0..3 {
            assert!(cache.put(key, key, SCRATCH_BYTES / 3).is_empty());
        }
        assert_eq!(cache.put(3, 3, SCRATCH_BYTES / 3), [0]);
        // A plan that is out with a caller does not count.
        let taken = cache.take(|&key| key == 2);
        assert!(cache.put(4, 4, SCRATCH_BYTES / 3).is_empty() && taken.is_some());
        assert_eq!(cache.put(5, 5, 2 * SCRATCH_BYTES), [1, 3, 4]);
        assert_eq!((cache.len(), cache.is_empty()), (1, false));
    }

    /// Calls at the same time have a plan each, under one key.
    #[test]
    fn a_key_may_have_several_plans() {
        let mut cache = PlanCache::new(4);
        let (first, second) = (cache.put((), 1, 0), cache.put((), 2, 0));
        assert!(first.is_empty() && second.is_empty());
        assert_eq!(cache.take(|()| true), Some(((), 2)));
        assert_eq!(cache.take(|()| true), Some(((), 1)));
        assert_eq!(cache.take(|()| true), None);
    }
}
