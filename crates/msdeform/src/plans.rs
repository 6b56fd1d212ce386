//! Plans that are kept between calls, by key.

/// Scratch memory that kept plans may hold together.
const SCRATCH_BYTES: usize = 256 << 20;

/// Plans by key, of which the least recently used are dropped.
///
/// A plan that only one call may use is taken out and put back after the call. A plan that calls may share is an `Arc`
/// that is found and cloned. The cache has no lock of its own: keep it in a `Mutex`, or one per thread.
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
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, scratch_bytes: 0 }
    }

    /// The number of plans in the cache.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

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
