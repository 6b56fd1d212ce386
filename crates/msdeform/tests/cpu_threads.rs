//! Plans used from many threads at once: the thread sanitizer (`cargo xtask tsan`) watches what they share.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use std::sync::{Barrier, Mutex};

use cpu_support::{Call, plan};
use msdeform::{CpuOptions, CpuPlan, DType, Problem};

/// For a race two are enough, and Miri takes as much longer as there are more.
const CALLERS: usize = if cfg!(miri) { 2 } else { 8 };

fn call(dtype: DType) -> Call {
    let builder = if cfg!(miri) {
        Problem::builder()
            .batch(2)
            .heads(2)
            .channels(3)
            .queries(2)
            .points(2)
            .levels([(2, 3), (2, 2)])
    } else {
        let builder = Problem::builder().batch(2).heads(3).channels(12).queries(120).points(4);
        builder.levels([(9, 7), (5, 4)])
    };
    Call::random(builder.dtype(dtype).build().unwrap(), 9)
}

fn at_once(work: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (work, barrier) = (&work, &barrier);
            scope.spawn(move || {
                barrier.wait();
                work(caller);
            });
        }
    });
}

fn rounds() -> usize {
    if cfg!(miri) { 1 } else { 5 }
}

#[test]
fn plans_on_the_ambient_pool_do_not_disturb_each_other() {
    let call = call(DType::F32);
    let expected = call.run(&mut plan(&call.problem, 1));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    at_once(|caller| {
        // One pool for all of them, as the global one is.
        let mut plan =
            pool.install(|| CpuPlan::new(&call.problem, &CpuOptions::default())).unwrap();
        for _ in 0..rounds() {
            let found = pool.install(|| call.run(&mut plan));
            assert!(found == expected, "caller {caller}");
        }
    });
}

#[test]
fn plans_with_threads_of_their_own_do_not_disturb_each_other() {
    let call = call(DType::F16);
    let expected = call.run(&mut plan(&call.problem, 1));
    at_once(|caller| {
        let mut plan = plan(&call.problem, 1 + caller % 3);
        for _ in 0..rounds() {
            assert!(call.run(&mut plan) == expected, "caller {caller}");
        }
    });
}

#[test]
fn one_plan_passes_from_thread_to_thread() {
    let call = call(DType::F32);
    let plan = Mutex::new(plan(&call.problem, 2));
    let expected = call.run(&mut plan.lock().unwrap());
    at_once(|caller| {
        for _ in 0..rounds() {
            let found = call.run(&mut plan.lock().unwrap());
            assert!(found == expected, "caller {caller}");
        }
    });
}
