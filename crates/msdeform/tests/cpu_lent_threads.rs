//! Plans on threads of the caller: results do not depend on their number.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use cpu_support::plan;
use msdeform::{CpuPlan, Error, LentThreads, Offsets, Problem, ProblemBuilder, Role, TensorView};

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

/// An encoder, whose heads are staged, and a decoder, whose are not, of both operators.
fn problems() -> [Problem; 4] {
    let base = Problem::builder().batch(2).points(2).channels(5);
    let (base, queries) = if cfg!(miri) {
        (base.batch(1).heads(2).levels([(2, 2), (1, 2)]), [6, 1])
    } else {
        (base.heads(3).levels([(9, 7), (5, 4)]), [83, 4])
    };
    let [encoder, decoder] = queries.map(|queries| base.clone().queries(queries));
    let fused = |builder: &ProblemBuilder| builder.clone().offsets(Offsets::from_boxes());
    [fused(&encoder), fused(&decoder), encoder, decoder].map(|builder| builder.build().unwrap())
}

/// Numbers between 0 and 1 that differ from call to call.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|index| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0).collect()
}

fn bits(output: &[f32]) -> Vec<u32> {
    output.iter().map(|number| number.to_bits()).collect()
}

/// A forward call on lent threads.
fn on(
    plan: &mut CpuPlan,
    threads: &dyn LentThreads,
    read: &[(Role, &Vec<f32>)],
    output: &mut [f32],
) -> Result<(), Error> {
    let read = read.iter().map(|&(role, numbers)| (role, TensorView::from(numbers)));
    plan.run_on(threads, read, [(Role::Output, output.into())])
}

#[test]
fn lent_threads_give_the_bits_of_the_plans_own_however_many_come() {
    for problem in problems() {
        // Miri, thousands of times slower: fewer calls than workers, as many, and more.
        let pools = if cfg!(miri) { &POOLS[1..4] } else { &POOLS[..] };
        for pool in pools {
            let (mut alone, mut lent) = (plan(&problem, 1), plan(&problem, 1));
            // Other numbers in the second call: what the first one staged must not be taken for them.
            for first_seed in [0, 4] {
                let seeds = problem.operator().inputs.iter().copied().zip(first_seed..);
                let inputs: Vec<(Role, Vec<f32>)> =
                    seeds.map(|(role, seed)| (role, numbers(problem.len_of(role), seed))).collect();
                let in_order = || inputs.iter().map(|(_, numbers)| numbers);
                let read: Vec<(Role, &Vec<f32>)> =
                    inputs.iter().map(|(role, numbers)| (*role, numbers)).collect();
                let [mut wanted, mut found] =
                    [(); 2].map(|()| vec![f32::NAN; problem.output_len()]);
                alone.forward(in_order(), &mut wanted).unwrap();
                on(&mut lent, pool, &read, &mut found).unwrap();
                assert_eq!(bits(&wanted), bits(&found), "{} of {problem}", pool.calls);
                // Both ways with one plan.
                lent.forward(in_order(), &mut found).unwrap();
                assert_eq!(bits(&wanted), bits(&found));
                let error = on(&mut lent, pool, &read[..1], &mut found).unwrap_err();
                let missing = problem.operator().inputs[1].name();
                assert!(
                    matches!(error, Error::Tensors { tensor, .. } if tensor == missing),
                    "{error}"
                );
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
    let (value, empty) = (numbers(4, 1), Vec::<f32>::new());
    let read = [(Role::Value, &value), (Role::Locations, &empty), (Role::Weights, &empty)];
    on(&mut plan(&problem, 1), &NoThreads, &read, &mut []).unwrap();
}
