//! The kernel that `TensorRT` embeds in engines, launched as `TensorRT` launches it, against the `f64` reference.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

mod common;

use std::path::Path;

use common::{kernel_folders, launch_in_every_order};
use msdeform::{DType, Direction, Offsets, Problem, ProblemBuilder, Role};
use msdeform_cuda::REGISTRY;
use msdeform_cuda::tensorrt::{EmbeddedKernel, Integers, Number};
use msdeform_emulator::{Buffer, EmulatedKernel, Launch, Specialisation, placeholder_address};
use msdeform_lab::oracle::expect;
use msdeform_lab::{Case, HostTensors};

const DTYPES: [(DType, DType); 3] =
    [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F16, DType::F32)];

fn small() -> ProblemBuilder {
    let sizes = [(7, 5), (4, 3), (1, 2)];
    Problem::builder()
        .batch(2)
        .heads(3)
        .channels(8)
        .queries(5)
        .levels(sizes)
        .points_per_level([2, 4, 1])
}

fn compiled(kernel: &EmbeddedKernel) -> EmulatedKernel {
    let mut defines = kernel.defines().to_vec();
    // The emulator keys what it has compiled by the file and its headers; the kernel inside is neither.
    let inlined = REGISTRY.iter().find(|variant| variant.spec.id == "fwd_general").unwrap();
    let length = inlined.source.text.len();
    defines.push(format!("-DMSDA_INLINED_BYTES={length}"));
    let specialisation = Specialisation {
        source: Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-cuda/tensorrt/forward.cu"),
        headers: kernel_folders(),
        entries: vec![kernel.name.clone()],
        defines,
    };
    EmulatedKernel::compile(&specialisation).unwrap_or_else(|error| panic!("{error}"))
}

/// What `TensorRT` passes besides the tensors of the operator.
struct Passed {
    /// Height and width of each level, then the start of each.
    levels: [Vec<i64>; 2],
    integers: Integers,
    /// Images and queries that have references of their own.
    references: [usize; 2],
}

impl Passed {
    fn of(problem: &Problem) -> Self {
        let levels = problem.levels();
        let sizes = levels.iter().flat_map(|level| [level.height as i64, level.width as i64]);
        let starts = levels.iter().map(|level| level.start as i64).collect();
        let references = [problem.batch(), problem.queries()];
        Self { levels: [sizes.collect(), starts], integers: Integers::I64, references }
    }

    fn bytes(&self, numbers: &[i64]) -> Vec<u8> {
        match self.integers {
            Integers::I64 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Integers::I32 => {
                numbers.iter().flat_map(|&number| (number as i32).to_le_bytes()).collect()
            }
        }
    }
}

/// The launch: pointers to the inputs in the order of the node, the integers, the pointer to the output.
fn launch(
    kernel: &EmbeddedKernel,
    problem: &Problem,
    inputs: &HostTensors,
    passed: &Passed,
) -> Launch {
    let tensors = inputs.iter().map(|(role, buffer)| match role {
        Role::References => of_first(buffer.bytes(), problem, passed.references),
        _ => buffer.bytes().to_vec(),
    });
    let mut tensors: Vec<Buffer> = tensors.map(Buffer::input).collect();
    let levels = passed.levels.iter().map(|numbers| Buffer::input(passed.bytes(numbers)));
    tensors.splice(1..1, levels);
    tensors.push(Buffer::output(problem.bytes_of(Role::Output)));
    let mut params = Vec::new();
    let output = tensors.len() - 1;
    (0..output).for_each(|place| params.extend(placeholder_address(place as u8).to_le_bytes()));
    for number in &kernel.numbers {
        let number = match number {
            Number::Batch => problem.batch(),
            Number::Pixels => problem.spatial(),
            Number::Queries => problem.queries(),
            Number::ReferenceImages => passed.references[0],
            Number::ReferenceQueries => passed.references[1],
        };
        params.extend((number as i32).to_le_bytes());
    }
    params.resize(params.len().next_multiple_of(8), 0);
    params.extend(placeholder_address(output as u8).to_le_bytes());
    let rows = (problem.batch() * problem.queries() * problem.heads()) as u64;
    let (blocks, threads) = (kernel.blocks(rows) as u32, kernel.threads);
    let mut launch =
        Launch::new([blocks, 1, 1], [threads, 1, 1], kernel.shared_bytes as usize, params);
    launch.buffers = tensors;
    launch
}

/// The references of as many images and queries.
fn of_first(bytes: &[u8], problem: &Problem, [images, queries]: [usize; 2]) -> Vec<u8> {
    let of_query = bytes.len() / problem.batch() / problem.queries();
    let of_image = of_query * problem.queries();
    let first = |image: &[u8]| image[..queries * of_query].to_vec();
    bytes.chunks(of_image).take(images).flat_map(first).collect()
}

fn assert_exact(case: &Case, inputs: &HostTensors, output: &[u8], what: &str) {
    let expected = &expect(case, inputs)[0];
    let bound = REGISTRY[0].spec.rel_l2_bound(expected.dtype);
    let verdict = expected.compare(output, bound);
    assert!(verdict.fault.is_none(), "{what}: {:?}", verdict.fault);
}

fn check(problem: ProblemBuilder, integers: Integers) {
    let problem = problem.build().unwrap();
    let kernel = EmbeddedKernel::new(&problem, integers).unwrap();
    let case = Case::varied(problem.clone(), Direction::Forward, 3);
    let inputs = case.inputs();
    let passed = Passed { integers, ..Passed::of(&problem) };
    let launch = launch(&kernel, &problem, &inputs, &passed);
    let output = launch_in_every_order(&compiled(&kernel), &launch);
    assert_exact(&case, &inputs, &output, &kernel.name);
}

#[test]
fn the_plain_operator_is_exact_in_every_dtype() {
    for (dtype, sampling) in DTYPES {
        check(small().dtype(dtype).sampling_dtype(sampling), Integers::I64);
    }
}

#[test]
fn levels_may_come_as_32_bit_integers_and_channels_may_be_odd() {
    check(small().channels(5), Integers::I32);
}

#[test]
fn levels_may_lie_anywhere_in_the_value() {
    check(small().level_starts([9, 48, 3]).spatial(60), Integers::I64);
}

#[test]
fn the_fused_operator_is_exact_for_every_kind_of_reference() {
    let rules = [
        Offsets::from_points(),
        Offsets::from_boxes().one_for_all_levels().offset_scale(0.25),
        Offsets::from_boxes().anchors(2).raw_weights(),
        Offsets::from_points().nearest(),
    ];
    for (rule, (dtype, sampling)) in
        rules.into_iter().zip([DTYPES[0], DTYPES[1], DTYPES[2], DTYPES[0]])
    {
        let problem = small().dtype(dtype).sampling_dtype(sampling);
        check(problem.offsets(rule).reference_dtype(sampling), Integers::I64);
    }
}

#[test]
fn references_of_one_image_or_query_serve_all() {
    let problem = small().offsets(Offsets::from_points()).build().unwrap();
    let kernel = EmbeddedKernel::new(&problem, Integers::I64).unwrap();
    let emulated = compiled(&kernel);
    let case = Case::varied(problem.clone(), Direction::Forward, 5);
    let mut inputs = case.inputs();
    let (batch, queries) = (problem.batch(), problem.queries());
    for references in [[1, queries], [batch, 1], [1, 1]] {
        // The same references in a tensor of full size, for the reference implementation.
        let all = inputs.widened().get(Role::References).to_vec();
        let of_query = all.len() / batch / queries;
        let repeated = (0..batch * queries).flat_map(|row| {
            let image = (row / queries).min(references[0] - 1);
            let query = (row % queries).min(references[1] - 1);
            let at = (image * queries + query) * of_query;
            all[at..][..of_query].to_vec()
        });
        let repeated: Vec<f64> = repeated.collect();
        inputs.set(Role::References, &repeated);
        let passed = Passed { references, ..Passed::of(&problem) };
        let launch = launch(&kernel, &problem, &inputs, &passed);
        let output = launch_in_every_order(&emulated, &launch);
        assert_exact(&case, &inputs, &output, &format!("{references:?}"));
    }
}

#[test]
fn levels_outside_of_the_value_give_nan_and_read_nothing() {
    let problem = small().build().unwrap();
    let kernel = EmbeddedKernel::new(&problem, Integers::I64).unwrap();
    let emulated = compiled(&kernel);
    let inputs = Case::plain(problem.clone(), None).inputs();
    let fitting = Passed::of(&problem);
    let [sizes, starts] = &fitting.levels;
    let wrong = [
        ([&[8][..], &sizes[1..]].concat(), [&[20][..], &starts[1..]].concat()),
        ([&[0][..], &sizes[1..]].concat(), starts.clone()),
        (sizes.clone(), [&[-1][..], &starts[1..]].concat()),
        ([&[i64::MAX, i64::MAX][..], &sizes[2..]].concat(), starts.clone()),
    ];
    for (sizes, starts) in wrong {
        let passed = Passed { levels: [sizes, starts], ..Passed::of(&problem) };
        let mut launch = launch(&kernel, &problem, &inputs, &passed);
        // Anything but NaN, so that an element that is not written shows.
        launch.buffers.last_mut().unwrap().bytes.fill(0);
        let output = common::f32_of_bytes(&launch_in_every_order(&emulated, &launch));
        assert!(output.iter().all(|number| number.is_nan()), "{:?}", passed.levels);
    }
}
