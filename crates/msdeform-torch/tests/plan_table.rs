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
    inputs: &Inputs<'_>,
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
    // SAFETY: every address is that of a tensor of the call, with its strides, which lives through the call.
    unsafe { cpu::run(direction, &Call::on_cpu(inputs, &levels, threads), pointers) }
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

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1009) as f32 / 1009.0).collect()
}

/// The tensors that both directions of a problem read; the gradient of the output is the last one.
struct Case {
    problem: Problem,
    read: Vec<Vec<f32>>,
}

impl Case {
    fn new(problem: Problem) -> Self {
        let roles = problem.operator().inputs.iter().chain([&Role::GradOutput]);
        Self { read: roles.map(|role| numbers(problem.len_of(*role))).collect(), problem }
    }

    fn inputs(&self) -> Inputs<'_> {
        let each = self.problem.operator().inputs.iter().zip(&self.read);
        let describe = |(role, tensor): (&Role, &'_ Vec<f32>)| {
            described(tensor, &self.problem.shape_of(*role), &[])
        };
        Inputs { tensors: each.map(describe).collect(), rule: None }
    }

    /// As Python calls it: addresses in, results where they point to.
    fn run(&self, threads: i64) -> Vec<u32> {
        let operator = self.problem.operator();
        let mut pointers = Pointers::from([(Role::GradOutput, address(&self.read[3]))]);
        let mut made = Vec::new();
        for role in Direction::ALL.into_iter().flat_map(|direction| operator.written(direction)) {
            let mut tensor = vec![f32::NAN; self.problem.len_of(role)];
            pointers = pointers.with(role, tensor.as_mut_ptr().expose_provenance() as u64);
            made.push(tensor);
        }
        for direction in Direction::ALL {
            run(direction, threads, &self.inputs(), &pointers).unwrap();
        }
        made.iter().flatten().map(|number| number.to_bits()).collect()
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
    inputs.tensors[0].address = 0;
    let refused = run(Direction::Forward, 1, &inputs, &Pointers::default());
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    assert!(case.run(1) == case.run(2));
}

/// Offsets and logits as parts of one projection, one reference for all queries: the strides that PyTorch's views have.
#[test]
fn offsets_and_logits_are_read_with_their_strides() {
    let problem = problem(120);
    let problem = problem.to_builder().offsets(Offsets::from_points()).build().unwrap();
    let [images, queries, heads, samples] = problem.weights_shape();
    let row = 3 * heads * samples;
    let (value, projection) = (numbers(problem.value_len()), numbers(images * queries * row));
    let references = numbers(4);
    let mut output = vec![f32::NAN; problem.output_len()];
    let rule = Some(OffsetOptions::default());
    let of_row = [(queries * row) as i64, row as i64];
    let tensors = vec![
        described(&value, &problem.value_shape(), &[]),
        described(&references, &problem.references_shape(), &[0, 0, 2]),
        described(&projection, &problem.locations_shape(), &of_row),
        described(&projection[2 * heads * samples..], &problem.weights_shape(), &of_row),
    ];
    let pointers = Pointers::from([(Role::Output, output.as_mut_ptr().expose_provenance() as u64)]);
    run(Direction::Forward, 2, &Inputs { tensors, rule }, &pointers).unwrap();

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
