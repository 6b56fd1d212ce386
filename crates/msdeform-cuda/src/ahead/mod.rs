//! Compiling while the caller goes on: what a training step needs next, and what a model needs in other sizes.
//!
//! Kernels that are wanted soon wait in a queue, which a few threads work off: gradients first, which the step that is under way
//! needs, of any model. A call that needs one of them now takes it if it is there, waits if it is being compiled, and
//! else compiles it: nothing is compiled twice. It needs no GPU, only the name of one.

mod sizes;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::driver::DeviceProps;
use crate::error::Result;
use crate::jit::{Code, CodeStore};
use crate::tuning::Tuning;
use crate::variants::{Call, KnobChoices, Unit, Variant};
use msdeform::BackwardCall;
use sizes::{OwnedCall, Wanted};

pub use sizes::other_sizes;

/// Where a GPU's kernels come from.
#[derive(Debug)]
pub struct Compiler {
    /// What it compiles with and where it keeps that.
    pub code: CodeStore,
    device: DeviceProps,
    /// What was measured on the GPU.
    pub tuning: Tuning,
    slots: Mutex<Slots>,
    queue: Mutex<Queue>,
    /// A thread has ended.
    ended: Condvar,
    /// The process whose threads those are: one that is forked off has none. Relaxed: who forks knows what came before.
    process: AtomicU32,
}

/// By variant and what is compiled of it.
type Slots = HashMap<(&'static str, Unit), Arc<Mutex<Slot>>>;

/// The state of a kernel.
#[derive(Debug, Default)]
enum Slot {
    /// Not compiled ahead, and not taken.
    #[default]
    Open,
    /// Compiled ahead, and not taken yet.
    Ready(Box<Code>),
    /// Given to the caller that loads it.
    Taken,
}

#[derive(Debug, Default)]
struct Queue {
    /// What a step that is under way will ask for.
    soon: VecDeque<Wanted>,
    /// What another size may ask for.
    later: VecDeque<Wish>,
    /// Whose sizes were gone through.
    models: Vec<OwnedCall>,
    threads: usize,
    is_closed: bool,
}

impl Queue {
    fn next(&mut self) -> Option<Wish> {
        self.soon.pop_front().map(Wish::Kernel).or_else(|| self.later.pop_front())
    }

    fn len(&self) -> usize {
        self.soon.len() + self.later.len()
    }

    fn clear(&mut self) {
        self.soon.clear();
        self.later.clear();
    }
}

/// Threads that compile: the other cores are the caller's, and what reads its data.
fn most_threads(cores: usize) -> usize {
    (cores / 2).clamp(1, 8)
}

#[derive(Debug)]
enum Wish {
    Kernel(Wanted),
    OtherSizes(Box<OwnedCall>),
}

impl Compiler {
    /// The kernels of a GPU from a store, chosen with what was measured on it.
    pub fn new(code: CodeStore, device: DeviceProps, tuning: Tuning) -> Arc<Self> {
        let (slots, queue, ended) = (Mutex::default(), Mutex::default(), Condvar::new());
        Arc::new(Self { code, device, tuning, slots, queue, ended, process: AtomicU32::new(0) })
    }

    /// The machine code of a kernel, for the caller to load.
    pub fn obtain(&self, variant: &'static Variant, unit: &Unit) -> Result<Code> {
        let slot = self.slot(variant, unit);
        let mut slot = lock(&slot);
        if let Slot::Ready(code) = std::mem::replace(&mut *slot, Slot::Open) {
            *slot = Slot::Taken;
            return Ok(*code);
        }
        let code = self.code.obtain(variant, unit, &self.device.arch())?;
        *slot = Slot::Taken;
        Ok(code)
    }

    /// Has the kernels compiled that a call leads to: those of its gradients, if they will be asked for, then those that
    /// it and its gradients need in other sizes. Returns at once.
    pub fn compile_ahead(self: &Arc<Self>, call: &Call<'_>, backward: Option<BackwardCall>) {
        let calls = [Some(call.backward), backward.map(Some)].into_iter().flatten();
        let calls: Vec<OwnedCall> = calls.map(|backward| OwnedCall::new(call, backward)).collect();
        let mut queue = lock(&self.queue);
        for (at, owned) in calls.into_iter().enumerate() {
            let Some(model) = owned.model().filter(|model| !queue.models.contains(model)) else {
                continue;
            };
            queue.models.push(model);
            // The plan of the call compiles the call's own kernels.
            if at > 0 {
                queue.soon.extend(owned.kernels(&self.device, &self.tuning));
            }
            queue.later.push_back(Wish::OtherSizes(Box::new(owned)));
        }
        self.start_threads(&mut queue);
    }

    /// Has the kernels compiled that a variant needs for a call, when nothing else is left to compile. Returns at once.
    pub fn compile_later(
        self: &Arc<Self>,
        variant: &'static Variant,
        knobs: &KnobChoices,
        call: &Call<'_>,
    ) {
        let kernels = sizes::kernels(variant, knobs, call);
        let mut queue = lock(&self.queue);
        queue.later.extend(kernels.into_iter().map(Wish::Kernel));
        self.start_threads(&mut queue);
    }

    /// Waits until nothing is left to compile.
    pub fn finish(&self) {
        // A forked process has no such threads, and one of them may have held the lock when it forked.
        if self.process.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        let mut queue = lock(&self.queue);
        while queue.threads > 0 {
            queue = self.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for running compilations and compiles nothing ahead from then on. Call it before the process ends, because
    /// the compiler must not run while its library is unloaded.
    pub fn close(&self) {
        if self.process.load(Ordering::Relaxed) == std::process::id() {
            let mut queue = lock(&self.queue);
            queue.is_closed = true;
            queue.clear();
        }
        self.finish();
    }

    fn start_threads(self: &Arc<Self>, queue: &mut Queue) {
        if queue.is_closed {
            queue.clear();
        }
        self.process.store(std::process::id(), Ordering::Relaxed);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = queue.len().min(most_threads(cores));
        while queue.threads < wanted {
            let this = Arc::clone(self);
            let thread = std::thread::Builder::new().name("msdeform-ahead".to_owned());
            // Without a thread kernels are compiled when they are needed.
            if thread.spawn(move || this.work()).is_err() {
                return;
            }
            queue.threads += 1;
        }
    }

    fn work(self: Arc<Self>) {
        let panicking = Panicking(&self);
        loop {
            let mut queue = lock(&self.queue);
            let Some(wish) = queue.next() else {
                // Under the same lock: who wishes for something next counts on no thread that is about to end.
                queue.threads -= 1;
                self.ended.notify_all();
                std::mem::forget(panicking);
                return;
            };
            drop(queue);
            match wish {
                Wish::Kernel((variant, unit)) => self.prepare(variant, &unit),
                Wish::OtherSizes(call) => {
                    let kernels = call.kernels_of_other_sizes(&self.device, &self.tuning);
                    let mut queue = lock(&self.queue);
                    if !queue.is_closed {
                        queue.later.extend(kernels.into_iter().map(Wish::Kernel));
                        self.start_threads(&mut queue);
                    }
                }
            }
        }
    }

    /// Compiles a kernel ahead. Ignores errors, because the plan that needs the kernel reports them.
    fn prepare(&self, variant: &'static Variant, unit: &Unit) {
        let slot = self.slot(variant, unit);
        let mut slot = lock(&slot);
        if matches!(*slot, Slot::Open)
            && let Ok(code) = self.code.obtain(variant, unit, &self.device.arch())
        {
            *slot = Slot::Ready(Box::new(self.code.keep_ahead(code)));
        }
    }

    fn slot(&self, variant: &'static Variant, unit: &Unit) -> Arc<Mutex<Slot>> {
        let name = (variant.spec.id, unit.clone());
        Arc::clone(lock(&self.slots).entry(name).or_default())
    }
}

/// A thread that ends before its time.
struct Panicking<'a>(&'a Compiler);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).threads -= 1;
        self.0.ended.notify_all();
    }
}

/// A thread that panicked elsewhere left what it locked whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Direction, Problem};

    use super::*;
    use crate::DiskCache;
    use crate::nvrtc::Nvrtc;

    fn problem(queries: usize) -> Problem {
        let problem = Problem::builder().heads(2).channels(8).queries(queries).points(2);
        problem.levels([(8, 8)]).dtype(DType::F16).build().unwrap()
    }

    fn compiler(folder: &std::path::Path) -> Option<Arc<Compiler>> {
        let nvrtc = Nvrtc::for_tests()?;
        let cache = DiskCache::in_folder(folder.to_owned());
        let code = CodeStore::with_nvrtc(cache, None, Ok(nvrtc));
        Some(Compiler::new(code, DeviceProps::h200(), Tuning::OFF))
    }

    fn kernels(compiler: &Compiler, problem: &Problem, direction: Direction) -> Vec<Wanted> {
        let call = Call::in_direction(direction, problem, &compiler.device);
        OwnedCall::new(&call, call.backward).kernels(&compiler.device, &compiler.tuning)
    }

    #[test]
    fn what_was_compiled_ahead_is_taken_and_nothing_is_compiled_twice() {
        let folder = tempfile::tempdir().unwrap();
        let Some(compiler) = compiler(folder.path()) else { return };
        let first = problem(10);
        let call = Call::new(&first, &compiler.device);
        compiler.compile_ahead(&call, None);
        // The call's own, side by side with those.
        let load = |problem: &Problem| {
            for (variant, unit) in kernels(&compiler, problem, Direction::Forward) {
                let code = compiler.obtain(variant, &unit).unwrap();
                assert!(code.compiled.cubin.starts_with(b"\x7fELF"));
                compiler.code.keep(&code).unwrap();
            }
        };
        load(&first);
        compiler.finish();
        let compiled = compiler.code.counts().compiled;
        let all = OwnedCall::new(&call, None);
        let all = all.kernels_of_other_sizes(&compiler.device, &compiler.tuning);
        assert_eq!(compiled, all.len() as u64);
        compiler.compile_ahead(&call, None);
        for queries in [1, 7, 300, 20_000] {
            load(&problem(queries));
        }
        compiler.finish();
        assert_eq!(compiler.code.counts().compiled, compiled);
    }

    #[test]
    fn gradients_of_a_model_that_comes_later_go_before_other_sizes_of_the_first() {
        let (device, tuning) = (DeviceProps::h200(), Tuning::OFF);
        let kernels = |problem: &Problem, direction| {
            let call = Call::in_direction(direction, problem, &device);
            OwnedCall::new(&call, call.backward).kernels(&device, &tuning)
        };
        let (encoder, decoder) = (problem(64), problem(10));
        let mut queue = Queue::default();
        queue.later.extend(kernels(&encoder, Direction::Forward).into_iter().map(Wish::Kernel));
        let asked = kernels(&decoder, Direction::Backward);
        queue.soon.extend(asked.iter().cloned());
        assert!(queue.len() > asked.len() && !asked.is_empty());
        for (_, expected) in &asked {
            let next = queue.next();
            assert!(matches!(&next, Some(Wish::Kernel((_, unit))) if unit == expected), "{next:?}");
        }
        queue.clear();
        assert!(queue.next().is_none());
        assert_eq!([1, 2, 4, 16, 128].map(most_threads), [1, 1, 2, 8, 8]);
    }

    #[test]
    fn what_is_wanted_later_is_compiled_in_the_background() {
        let folder = tempfile::tempdir().unwrap();
        let Some(compiler) = compiler(folder.path()) else { return };
        let problem = problem(10);
        let call = Call::new(&problem, &compiler.device);
        let variant = crate::dispatch::builtin(&call).unwrap();
        compiler.compile_later(variant, &KnobChoices::default(), &call);
        compiler.finish();
        let compiled = compiler.code.counts().compiled;
        assert!(compiled > 0);
        for (variant, unit) in kernels(&compiler, &problem, Direction::Forward) {
            compiler.obtain(variant, &unit).unwrap();
        }
        assert_eq!(compiler.code.counts().compiled, compiled);
    }

    #[test]
    fn gradients_that_will_be_asked_for_come_first_and_nothing_after_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let Some(compiler) = compiler(folder.path()) else { return };
        let first = problem(10);
        let call = Call::new(&first, &compiler.device);
        compiler.compile_ahead(&call, Some(BackwardCall::new(&first)));
        let (variant, unit) = kernels(&compiler, &first, Direction::Backward).remove(0);
        let slot = compiler.slot(variant, &unit);
        let started = std::time::Instant::now();
        while matches!(*lock(&slot), Slot::Open) {
            assert!(started.elapsed().as_secs() < 120, "the first kernel is never compiled");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        compiler.close();
        let compiled = compiler.code.counts().compiled;
        assert!(compiled > 0 && lock(&compiler.queue).threads == 0);
        compiler.compile_ahead(&Call::new(&problem(11), &compiler.device), None);
        let other = problem(10).to_builder().channels(16).build().unwrap();
        compiler.compile_ahead(&Call::new(&other, &compiler.device), None);
        compiler.finish();
        assert_eq!(compiler.code.counts().compiled, compiled);
        assert_eq!(lock(&compiler.queue).len(), 0);
    }
}
