//! Plans used from many threads at once: the thread sanitizer (`cargo xtask tsan`) watches what they share.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use std::sync::{Barrier, Mutex};

use cpu_support::{Case, Results, Tensor};
use msdeform::cpu::{CpuOptions, CpuPlan};
use msdeform::{DType, Problem};

const CALLERS: usize = if cfg!(miri) { 3 } else { 8 };

fn case(dtype: DType) -> Case {
    let (batch, queries) = if cfg!(miri) { (1, 2) } else { (2, 120) };
    let builder = Problem::builder().batch(batch).heads(3).channels(12).queries(queries).points(4);
    Case::random(builder.levels([(9, 7), (5, 4)]).dtype(dtype).build().unwrap(), 9)
}

fn bits(results: &Results) -> [Vec<u64>; 4] {
    let Results { output, grad_value, grad_locations, grad_weights } = results;
    [output, grad_value, grad_locations, grad_weights].map(Tensor::bits)
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
    let case = case(DType::F32);
    let options = |threads| CpuOptions { threads, isa: None };
    let expected = bits(&case.run(&mut CpuPlan::new(&case.problem, &options(Some(1))).unwrap()));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    at_once(|caller| {
        // One pool for all of them, as the global one is.
        let mut plan = pool.install(|| CpuPlan::new(&case.problem, &options(None))).unwrap();
        for _ in 0..rounds() {
            let found = pool.install(|| case.run(&mut plan));
            assert!(bits(&found) == expected, "caller {caller}");
        }
    });
}

#[test]
fn plans_with_threads_of_their_own_do_not_disturb_each_other() {
    let case = case(DType::F16);
    let plan = |threads| {
        CpuPlan::new(&case.problem, &CpuOptions { threads: Some(threads), isa: None }).unwrap()
    };
    let expected = bits(&case.run(&mut plan(1)));
    at_once(|caller| {
        let mut plan = plan(1 + caller % 3);
        for _ in 0..rounds() {
            assert!(bits(&case.run(&mut plan)) == expected, "caller {caller}");
        }
    });
}

#[test]
fn one_plan_passes_from_thread_to_thread() {
    let case = case(DType::F32);
    let options = CpuOptions { threads: Some(2), isa: None };
    let plan = Mutex::new(CpuPlan::new(&case.problem, &options).unwrap());
    let expected = bits(&case.run(&mut plan.lock().unwrap()));
    at_once(|caller| {
        for _ in 0..rounds() {
            let found = case.run(&mut plan.lock().unwrap());
            assert!(bits(&found) == expected, "caller {caller}");
        }
    });
}
