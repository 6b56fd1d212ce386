//! Plans on threads of the caller: results do not depend on their number.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use cpu_support::{Call, fused, plan};
use msdeform::{CpuPlan, Error, LentThreads, Problem, ProblemBuilder};
use msdeform_lab::HostTensors;
use msdeform_lab::case::CallMemory;

/// Says that there are `workers`, and calls `calls` times at once.
struct Pool {
    workers: usize,
    calls: usize,
}

impl LentThreads for Pool {
    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        std::thread::scope(|scope| {
            for _ in 1..self.calls {
                scope.spawn(work);
            }
            work();
        });
    }
}

/// Fewer calls than workers, as many, and more than were asked for.
const POOLS: [Pool; 6] = [
    Pool { workers: 1, calls: 1 },
    Pool { workers: 4, calls: 1 },
    Pool { workers: 3, calls: 3 },
    Pool { workers: 2, calls: 5 },
    Pool { workers: 0, calls: 1 },
    Pool { workers: usize::MAX / 2, calls: 2 },
];

/// A forward call on lent threads, of the first so many inputs.
fn on(
    plan: &mut CpuPlan,
    threads: &dyn LentThreads,
    call: &Call,
    inputs: usize,
) -> Result<HostTensors, Error> {
    let case = call.case(None);
    let mut memory = CallMemory::of_case(&case, &call.inputs);
    let read = memory.read.iter().map(|(role, buffer)| (role, buffer.view())).take(inputs);
    let written = memory.written.iter_mut().map(|(role, buffer)| (role, buffer.view_mut()));
    plan.run_on(threads, read.collect::<Vec<_>>(), written)?;
    Ok(memory.results().unwrap())
}

#[test]
fn lent_threads_give_the_bits_of_the_plans_own_however_many_come() {
    let [encoder, decoder, _] = fused();
    let of_both = |builder: ProblemBuilder| [builder.clone(), builder.given_samples()];
    for builder in [encoder, decoder].into_iter().flat_map(of_both) {
        let problem = builder.build().unwrap();
        // Miri, thousands of times slower: fewer calls than workers, as many, and more.
        let pools = if cfg!(miri) { &POOLS[1..4] } else { &POOLS[..] };
        for pool in pools {
            let (mut alone, mut lent) = (plan(&problem, 1), plan(&problem, 1));
            // Other numbers in the second call: what the first one staged must not be taken for them.
            for seed in [0, 4] {
                let call = Call::random(problem.clone(), seed);
                let wanted = call.written(&mut alone, None);
                let found = on(&mut lent, pool, &call, usize::MAX).unwrap();
                assert_eq!(wanted, found, "{} of {problem}", pool.calls);
                // Both ways with one plan.
                assert_eq!(call.written(&mut lent, None), wanted);
                let error = on(&mut lent, pool, &call, 1).unwrap_err().to_string();
                let missing = problem.operator().inputs[1].name();
                assert!(error.starts_with(&format!("`{missing}` is missing")), "{error}");
            }
            assert_eq!(lent.threads(), 1);
        }
    }
}

#[test]
fn an_empty_output_asks_nobody() {
    struct NoThreads;
    impl LentThreads for NoThreads {
        fn workers(&self) -> usize {
            1
        }
        fn run(&self, _: &(dyn Fn() + Sync)) {
            panic!("there is nothing to do");
        }
    }
    let problem = Problem::builder().queries(0).levels([(2, 2)]).build().unwrap();
    let call = Call::random(problem.clone(), 1);
    on(&mut plan(&problem, 1), &NoThreads, &call, usize::MAX).unwrap();
}
