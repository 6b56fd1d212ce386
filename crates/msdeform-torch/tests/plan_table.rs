//! The CPU's plans, by key and by calling thread, with no PyTorch around them: so that Miri and the thread
//! sanitizer can look at it.

#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use std::sync::Barrier;

use msdeform::{DType, Direction, OffsetOptions, Offsets, Problem, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{Call, Described, Inputs, Place};
use msdeform_torch::cpu;
use msdeform_torch::error::CallError;

/// A tensor of `f32`, with strides where they count.
fn described<'a>(tensor: &[f32], shape: &[usize], strides: &'a [i64]) -> Described<'a> {
    Described {
        address: address(tensor),
        dtype: DType::F32,
        place: Place::Cpu,
        shape: shape.iter().map(|&size| size as i64).collect(),
        strides: strides.into(),
    }
}

fn address(tensor: &[f32]) -> u64 {
    tensor.as_ptr().expose_provenance() as u64
}

fn run(
    direction: Direction,
    threads: i64,
    (tensors, rule): (&[Described<'_>], Option<OffsetOptions>),
    pointers: &Pointers,
) -> Result<(), CallError> {
    let levels: Vec<i64> = LEVELS
        .into_iter()
        .scan(0, |start, (height, width)| {
            let level = [height, width, *start, POINTS as i64];
            *start += height * width;
            Some(level)
        })
        .flatten()
        .collect();
    let inputs = Inputs { tensors, rule };
    // SAFETY: every address is that of a tensor of the call, with its strides, which lives through the call.
    unsafe { cpu::run(direction, &Call::on_cpu(&inputs, &levels, threads), pointers) }
}

/// Miri, thousands of times slower, gets as much of everything in smaller sizes.
const LEVELS: [(i64, i64); 2] = if cfg!(miri) { [(3, 4), (2, 3)] } else { [(9, 11), (5, 6)] };
const POINTS: usize = if cfg!(miri) { 2 } else { 4 };
/// Under Miri two of them with workers of their own, and two without.
const CALLERS: usize = if cfg!(miri) { 4 } else { 8 };

/// From 120 queries on large enough to be shared out to threads, under Miri too.
fn problem(queries: usize) -> Problem {
    let (queries, heads, channels) =
        if cfg!(miri) { (queries / 40, 1, 5) } else { (queries, 4, 32) };
    let builder = Problem::builder().batch(2).heads(heads).channels(channels).queries(queries);
    builder.points(POINTS).levels(LEVELS).dtype(DType::F32).build().unwrap()
}

/// Tensors of a problem and what a call makes of them.
struct Case {
    problem: Problem,
    value: Vec<f32>,
    locations: Vec<f32>,
    weights: Vec<f32>,
    grad_output: Vec<f32>,
}

impl Case {
    fn new(problem: Problem) -> Self {
        let numbers = |len: usize, scale: f32| {
            (0..len).map(|i| (i * 7919 % 1009) as f32 / 1009.0 * scale).collect::<Vec<_>>()
        };
        Self {
            value: numbers(problem.value_len(), 2.0),
            locations: numbers(problem.locations_len(), 1.0),
            weights: numbers(problem.weights_len(), 1.0),
            grad_output: numbers(problem.output_len(), 1.0),
            problem,
        }
    }

    fn inputs(&self) -> [Described<'_>; 3] {
        let [images, queries, heads, samples] = self.problem.weights_shape();
        let value = [images, self.problem.spatial(), heads, self.problem.channels()];
        [
            described(&self.value, &value, &[]),
            described(&self.locations, &[images, queries, heads, samples, 2], &[]),
            described(&self.weights, &[images, queries, heads, samples], &[]),
        ]
    }

    /// As Python calls it: addresses in, results where they point to.
    fn run(&self, threads: i64) -> [Vec<u32>; 4] {
        let written = [Role::Output, Role::GradValue, Role::GradLocations, Role::GradWeights];
        let mut made = written.map(|role| vec![f32::NAN; self.problem.len_of(role)]);
        let mut pointers = Pointers::from([(Role::GradOutput, address(&self.grad_output))]);
        for (role, tensor) in written.iter().zip(&mut made) {
            pointers = pointers.with(*role, tensor.as_mut_ptr().expose_provenance() as u64);
        }
        for direction in Direction::ALL {
            run(direction, threads, (&self.inputs(), None), &pointers).unwrap();
        }
        made.map(|tensor| tensor.into_iter().map(f32::to_bits).collect())
    }
}

#[test]
fn threads_that_call_at_once_get_the_same_bits_whatever_their_number_of_workers() {
    let cases = [problem(300), problem(120)].map(Case::new);
    let expected = cases.each_ref().map(|case| case.run(1));
    let (rounds, most) = if cfg!(miri) { (1, 2) } else { (4, 4) };
    let barrier = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (cases, expected, barrier) = (&cases, &expected, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..rounds {
                    let which = (caller + round) % 2;
                    // As `torch.set_num_threads` between two calls.
                    let threads = 1 + (caller + round) % most;
                    let found = cases[which].run(threads as i64);
                    assert!(found == expected[which], "caller {caller}, {threads} threads");
                }
            });
        }
    });
}

#[test]
fn more_problems_than_plans_are_kept_are_computed_all_the_same() {
    let queries = if cfg!(miri) { vec![40, 80, 120] } else { (1..40).collect() };
    for queries in queries {
        let case = Case::new(problem(queries));
        let found = case.run(1);
        assert!(found == case.run(1), "{queries} queries");
    }
}

#[test]
fn a_tensor_without_memory_is_refused_and_the_next_call_works() {
    let case = Case::new(problem(120));
    let mut inputs = case.inputs();
    inputs[0].address = 0;
    let refused = run(Direction::Forward, 1, (&inputs, None), &Pointers::default());
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    assert!(case.run(1) == case.run(2));
}

/// Offsets and logits as parts of one projection, one reference for all queries: the strides that PyTorch's views have.
#[test]
fn offsets_and_logits_are_read_with_their_strides() {
    let problem = problem(120);
    let problem = problem.to_builder().offsets(Offsets::from_points()).build().unwrap();
    let numbers = |len: usize| (0..len).map(|i| (i * 7919 % 1009) as f32 / 1009.0).collect();
    let [images, queries, heads, samples] = problem.weights_shape();
    let row = 3 * heads * samples;
    let (value, projection): (Vec<f32>, Vec<f32>) =
        (numbers(problem.value_len()), numbers(images * queries * row));
    let references: Vec<f32> = numbers(4);
    let mut output = vec![f32::NAN; problem.output_len()];
    let rule = OffsetOptions::default();
    let of_row = [(queries * row) as i64, row as i64];
    let value_shape = [images, problem.spatial(), heads, problem.channels()];
    let references_shape = [images, queries, problem.levels().len(), 2];
    let offsets_shape = [images, queries, heads, samples, 2];
    let tensors = [
        described(&value, &value_shape, &[]),
        described(&references, &references_shape, &[0, 0, 2]),
        described(&projection, &offsets_shape, &of_row),
        described(&projection[2 * heads * samples..], &offsets_shape[..4], &of_row),
    ];
    let pointers = Pointers::from([(Role::Output, output.as_mut_ptr().expose_provenance() as u64)]);
    run(Direction::Forward, 2, (&tensors, Some(rule)), &pointers).unwrap();

    let part = |from: usize, len: usize| -> Vec<f32> {
        projection.chunks(row).flat_map(|row| &row[from..from + len]).copied().collect()
    };
    let (offsets, logits) =
        (part(0, 2 * heads * samples), part(2 * heads * samples, heads * samples));
    let repeated: Vec<f32> = (0..images * queries).flat_map(|_| &references).copied().collect();
    let mut expected = vec![f32::NAN; problem.output_len()];
    msdeform::forward(&problem, [&value, &repeated, &offsets, &logits], &mut expected).unwrap();
    assert_eq!(output, expected);
}
