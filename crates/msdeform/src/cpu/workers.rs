//! The threads of a plan, and how they share work.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::workspace::{NoScratch, Workspace};
use crate::Error;

/// The threads that a plan runs on.
#[derive(Debug)]
enum Threads {
    /// The calling thread, no pool.
    Caller,
    /// The pool of the calling thread: rayon's global one unless the call comes from another.
    Ambient,
    /// Threads of this plan alone.
    Own(ThreadPool),
}

/// Threads of the caller that a call may run on, such as the pool of a runtime: see [`CpuPlan::run_on`].
///
/// [`CpuPlan::run_on`]: crate::CpuPlan::run_on
pub trait LentThreads {
    /// The most workers that are of use at the same time. More than there are threads cost next to nothing.
    fn workers(&self) -> usize;

    /// Calls `work` at least once and at most [`LentThreads::workers`] times, on any threads, and returns when all calls
    /// have. A call that begins when everything is done returns at once. `work` does not panic: the call on the plan does,
    /// after `run` has returned.
    fn run(&self, work: &(dyn Fn() + Sync));
}

/// Threads, each with its memory.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: Threads,
    workspaces: Vec<Workspace>,
    /// Memory of those that were lent.
    lent: Vec<Workspace>,
}

impl Workers {
    /// As many as were asked for, or those of the ambient pool.
    pub(crate) fn new(wanted: Option<usize>) -> Result<Self, Error> {
        let (threads, count) = match wanted {
            Some(0) => {
                return Err(Error::Threads { threads: 0, reason: "at least one is needed".into() });
            }
            Some(threads) if threads > max_threads() => {
                let reason = format!("at most {} are started", max_threads());
                return Err(Error::Threads { threads, reason });
            }
            Some(1) => (Threads::Caller, 1),
            Some(threads) => (Threads::Own(start_pool(threads)?), threads),
            None => match rayon::current_num_threads() {
                1 => (Threads::Caller, 1),
                threads => (Threads::Ambient, threads),
            },
        };
        let mut workspaces = Vec::new();
        workspaces.resize_with(count, Workspace::default);
        Ok(Self { threads, workspaces, lent: Vec::new() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.workspaces.len()
    }

    /// Memory that they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.workspaces.iter().chain(&self.lent).map(Workspace::bytes).sum()
    }

    /// Every worker does one range of the units, all about as long.
    pub(crate) fn divide(
        &mut self,
        units: usize,
        part: impl Fn(Range<usize>, &mut Workspace) -> Result<(), NoScratch> + Sync,
    ) -> Result<(), Error> {
        let parts = self.count();
        // In 128 bits: the product may exceed the address space.
        let bound = |part: usize| (units as u128 * part as u128 / parts as u128) as usize;
        self.run(|index, workspace| part(bound(index)..bound(index + 1), workspace))
    }

    /// Each worker takes the next task when it is free.
    pub(crate) fn take_turns(
        &mut self,
        tasks: usize,
        task: impl Fn(usize, &mut Workspace) -> Result<(), NoScratch> + Sync,
    ) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        self.run(|_, workspace| {
            loop {
                // Relaxed: it gives every number out once and publishes nothing; the pool's join does that.
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    return Ok(());
                }
                task(index, workspace)?;
            }
        })
    }

    /// As [`Workers::take_turns`], on lent threads.
    pub(crate) fn take_turns_on(
        &mut self,
        threads: &dyn LentThreads,
        tasks: usize,
        task: impl Fn(usize, &mut Workspace) -> Result<(), NoScratch> + Sync,
    ) -> Result<(), Error> {
        let workers = threads.workers().clamp(1, tasks.max(1));
        if self.lent.len() < workers {
            self.lent.resize_with(workers, Workspace::default);
        }
        let (next, missing_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let workspaces = Mutex::new(self.lent[..workers].iter_mut());
        let panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::default();
        let work = || {
            // Poisoned or not: an iterator is whole between calls.
            let free = workspaces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(workspace) = free else { return };
            workspace.forget_values();
            loop {
                // Relaxed, as in `take_turns`: it publishes nothing, and the lender joins its threads.
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    return;
                }
                if let Err(NoScratch { bytes }) = task(index, workspace) {
                    missing_bytes.fetch_max(bytes, Ordering::Relaxed);
                    return;
                }
            }
        };
        // A panic must not end a thread of the lender, nor pass through functions in other languages.
        threads.run(&|| {
            if let Err(found) = catch_unwind(AssertUnwindSafe(work)) {
                *panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            }
        });
        if let Some(panic) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        match missing_bytes.into_inner() {
            0 => Ok(()),
            bytes => Err(no_scratch(bytes)),
        }
    }

    fn run(
        &mut self,
        work: impl Fn(usize, &mut Workspace) -> Result<(), NoScratch> + Sync,
    ) -> Result<(), Error> {
        let missing_bytes = AtomicUsize::new(0);
        let work = |(index, workspace): (usize, &mut Workspace)| {
            workspace.forget_values();
            if let Err(NoScratch { bytes }) = work(index, workspace) {
                missing_bytes.fetch_max(bytes, Ordering::Relaxed);
            }
        };
        let workspaces = &mut self.workspaces;
        match &self.threads {
            Threads::Caller => workspaces.iter_mut().enumerate().for_each(work),
            Threads::Ambient => workspaces.par_iter_mut().enumerate().for_each(work),
            Threads::Own(pool) => {
                pool.install(|| workspaces.par_iter_mut().enumerate().for_each(work));
            }
        }
        match missing_bytes.into_inner() {
            0 => Ok(()),
            bytes => Err(no_scratch(bytes)),
        }
    }
}

const fn no_scratch(bytes: usize) -> Error {
    Error::NoMemory { what: "the scratch space of a thread", bytes }
}

/// The most threads that a plan starts: 1024, or one per core where there are more. Beyond that threads cost more
/// than they compute, and starting a hundred thousand of them takes minutes before the system says no.
pub fn max_threads() -> usize {
    const MOST: usize = 1024;
    std::thread::available_parallelism().map_or(MOST, |cores| cores.get().max(MOST))
}

fn start_pool(threads: usize) -> Result<ThreadPool, Error> {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("msdeform-{index}"))
        .build()
        .map_err(|error| Error::Threads { threads, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_lent_thread_reaches_the_caller_and_not_the_lender() {
        struct OnNewThread;
        impl LentThreads for OnNewThread {
            fn workers(&self) -> usize {
                1
            }
            fn run(&self, work: &(dyn Fn() + Sync)) {
                std::thread::scope(|scope| scope.spawn(work).join().unwrap());
            }
        }
        let mut workers = Workers::new(Some(1)).unwrap();
        let call = || workers.take_turns_on(&OnNewThread, 1, |_, _| panic!("on purpose"));
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }
}
