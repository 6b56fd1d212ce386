//! The threads of a plan, and how they share work.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// Threads, each with its memory.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: Threads,
    workspaces: Vec<Workspace>,
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
        Ok(Self { threads, workspaces })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.workspaces.len()
    }

    /// Memory that they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.workspaces.iter().map(Workspace::bytes).sum()
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

    /// Whoever is free takes the next task.
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

    fn run(
        &mut self,
        work: impl Fn(usize, &mut Workspace) -> Result<(), NoScratch> + Sync,
    ) -> Result<(), Error> {
        let missing_bytes = AtomicUsize::new(0);
        let work = |(index, workspace): (usize, &mut Workspace)| {
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
            bytes => Err(Error::NoMemory { what: "the scratch space of a thread", bytes }),
        }
    }
}

/// The most threads that a plan starts: 1024, or one per core where there are more. Beyond that threads cost more
/// than they compute, and starting a hundred thousand of them takes minutes before the system says no.
#[must_use]
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
