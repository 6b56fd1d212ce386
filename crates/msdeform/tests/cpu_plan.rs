//! What a plan promises beyond the numbers: determinism, threads, subsets, errors.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use std::collections::BTreeMap;

use cpu_support::{Call, fused, plan};
use half::f16;
use msdeform::{
    CpuOptions, CpuPlan, DType, Direction, Error, Gradients, Isa, Offsets, Operator, Problem,
    ProblemBuilder, Role, TensorView, TensorViewMut, ValueLayout, cpu, reference,
};
use msdeform_lab::Case;
use msdeform_lab::case::{CallMemory, SourceMemory};
use msdeform_lab::runner::run_plan;

/// An encoder (values read often, hence staged) and a decoder (hence not).
fn encoder() -> ProblemBuilder {
    if cfg!(miri) {
        // As much is staged, of less.
        let builder = Problem::builder().batch(1).heads(2).channels(5).queries(3).points(2);
        return builder.levels([(2, 2), (1, 2)]);
    }
    let pixels = 17 * 13 + 9 * 7 + 5 * 4;
    Problem::builder().batch(2).heads(3).channels(24).queries(pixels).points(4).levels([
        (17, 13),
        (9, 7),
        (5, 4),
    ])
}

fn decoder() -> ProblemBuilder {
    if cfg!(miri) {
        let builder = Problem::builder().batch(2).heads(1).channels(5).queries(3).points(2);
        return builder.levels([(3, 4), (2, 3)]);
    }
    Problem::builder().batch(2).heads(4).channels(32).queries(20).points(3).levels([
        (40, 50),
        (20, 25),
        (10, 13),
    ])
}

/// Numbers of threads to compare with one thread.
const THREADS: &[usize] = if cfg!(miri) { &[2] } else { &[2, 7] };

/// Queries of two samples among nine pixels, so many that those are staged.
const STAGED_QUERIES: usize = if cfg!(miri) { 7 } else { 40 };

#[test]
fn the_same_bits_come_out_for_any_number_of_threads() {
    let plain = [encoder(), decoder()];
    let plain = plain.iter().flat_map(|of| DType::FAST.map(|dtype| of.clone().dtype(dtype)));
    let problems: Vec<ProblemBuilder> =
        plain.chain(fused().map(|builder| builder.dtype(DType::F16))).collect();
    for isa in Isa::ALL {
        if !isa.is_available() {
            println!("skipped: {isa} is not available here");
            continue;
        }
        for builder in &problems {
            let call = Call::random(builder.clone().build().unwrap(), 3);
            let bits = |threads| {
                let options = CpuOptions { threads: Some(threads), isa: Some(isa) };
                let mut plan = CpuPlan::new(&call.problem, &options).unwrap();
                assert_eq!(plan.threads(), threads);
                call.run(&mut plan)
            };
            let alone = bits(1);
            for &threads in THREADS {
                assert_eq!(alone, bits(threads), "{threads} threads, {isa}, {}", call.problem);
            }
        }
    }
}

#[test]
fn any_subset_of_the_gradients_has_the_bits_of_all_of_them() {
    let plain = [encoder(), decoder()].map(|builder| builder.dtype(DType::F16));
    for builder in plain.into_iter().chain(fused().map(|builder| builder.dtype(DType::Bf16))) {
        let call = Call::random(builder.build().unwrap(), 11);
        // Threads that wait for work take more of Miri than the work; the test above has some.
        let mut plan = plan(&call.problem, if cfg!(miri) { 1 } else { 2 });
        let mut written = |subset| call.written(&mut plan, Some(subset));
        let all = written(Gradients::all_of(&call.problem));
        let roles: Vec<Role> = call.problem.operator().written(Direction::Backward).collect();
        // Of Miri those of an even number of gradients, in which each one is there and is not.
        let is_taken = |mask: &u32| !cfg!(miri) || mask.count_ones().is_multiple_of(2);
        for mask in (0..1u32 << roles.len()).filter(is_taken) {
            let places = (0..roles.len()).filter(|place| mask & (1 << place) != 0);
            let subset: Gradients = places.map(|place| roles[place]).collect();
            let wanted = all.clone().into_iter().filter(|&(role, _)| subset.includes(role));
            assert_eq!(written(subset), wanted.collect(), "{subset} of {}", call.problem);
        }
    }
}

#[test]
fn what_does_not_count_contributes_nothing_whatever_its_weight_and_neighbours() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for queries in [1, STAGED_QUERIES] {
            let base = Problem::builder().queries(queries).channels(3).levels([(3, 3)]);
            let problem = base.points(2).build().unwrap();
            assert_eq!(problem.samples(), 2);
            let options = CpuOptions { threads: Some(1), isa: Some(isa) };
            let mut plan = CpuPlan::new(&problem, &options).unwrap();
            let value = vec![f32::INFINITY; problem.value_len()];
            for far in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -3.0, 1e30] {
                let locations: Vec<f32> =
                    (0..4 * queries).map(|i| if i % 2 == 0 { far } else { 0.5 }).collect();
                let weights = vec![f32::INFINITY; 2 * queries];
                let mut output = vec![f32::NAN; problem.output_len()];
                let inputs = [&value, &locations, &weights];
                plan.forward(inputs, &mut output).unwrap();
                assert!(output.iter().all(|&x| x == 0.0), "{isa} {far}: {output:?}");
                let grad = vec![f32::INFINITY; problem.output_len()];
                let gradients = [Role::GradValue, Role::GradLocations, Role::GradWeights];
                let mut found = gradients.map(|role| (role, vec![f32::NAN; problem.len_of(role)]));
                let to = found.iter_mut().map(|(role, numbers)| (*role, numbers));
                plan.backward(inputs, &grad, to).unwrap();
                for (role, numbers) in found {
                    assert!(numbers.iter().all(|&x| x == 0.0), "{isa} {far}: {role} {numbers:?}");
                }
            }
        }
    }
}

#[test]
fn a_corner_outside_is_never_multiplied() {
    // The sample lies half a pixel left of an infinite pixel: infinite, not NaN.
    for queries in [1, STAGED_QUERIES] {
        let problem = Problem::builder().queries(queries).levels([(1, 2)]).build().unwrap();
        let mut output = vec![f32::NAN; queries];
        let locations = [0f32, 0.5].repeat(queries);
        let value = vec![f32::INFINITY, 1.0];
        let inputs = [&value, &locations, &vec![1f32; queries]];
        plan(&problem, 1).forward(inputs, &mut output).unwrap();
        assert!(output.iter().all(|&x| x == f32::INFINITY), "{output:?}");
    }
}

/// The heads' offsets lie outside of an empty tensor. Miri checks that the plan does not read there.
#[test]
fn a_value_tensor_without_pixels_gives_zeros() {
    for layout in ValueLayout::ALL {
        for points in [0, 2] {
            let builder =
                Problem::builder().batch(2).heads(3).channels(5).queries(2).points(points);
            let builder = builder.levels(Vec::<(i64, i64)>::new()).layout(layout);
            let call = Call::random(builder.build().unwrap(), 1);
            assert_eq!(call.problem.value_len(), 0);
            let results = call.run(&mut plan(&call.problem, 1));
            let output = results[Role::Output].bytes();
            assert!(output.iter().all(|&byte| byte == 0), "{output:?}");
        }
    }
}

/// What both directions read.
fn in_f32(call: &Call) -> [Vec<f32>; 4] {
    [Role::Value, Role::Locations, Role::Weights, Role::GradOutput]
        .map(|role| call.inputs[role].to_f64().into_iter().map(|number| number as f32).collect())
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let problem = decoder().build().unwrap();
    let [value, locations, weights, grad] = &in_f32(&Call::random(problem.clone(), 1));
    let mut plan = plan(&problem, 1);
    let mut output = vec![0f32; problem.output_len()];
    let right = [value, locations, weights].map(TensorView::from);
    let one_short = |name: &str, len: usize| format!("`{name}` has {} elements", len - 1);
    let half = vec![f16::ZERO; problem.value_len()];
    let [batch, queries, heads, samples, _] = problem.locations_shape();
    let swapped = TensorView::new(locations, &[queries, batch, heads, samples, 2]).unwrap();
    let (shape, strides) =
        ([batch * queries * heads, samples], [1, (batch * queries * heads) as isize]);
    let transposed = TensorView::strided(weights, &shape, &strides).unwrap();
    for (place, wrong, words) in [
        (0, (&half).into(), "`value` is f16, the problem says f32".into()),
        (0, (&value[1..]).into(), one_short("value", value.len())),
        (1, swapped, "`sampling_locations` has shape".into()),
        (2, (&weights[1..]).into(), one_short("attention_weights", weights.len())),
        (2, transposed, "`attention_weights` has shape".into()),
    ] {
        let mut inputs = right.clone();
        inputs[place] = wrong;
        let error = plan.forward(inputs, &mut output).unwrap_err().to_string();
        assert!(error.contains(&words), "{error}");
    }
    let error = plan.forward(right.clone(), &mut output[1..]).unwrap_err().to_string();
    assert!(error.contains("`output` has") && error.ends_with("; give a larger buffer"), "{error}");
    let [mut short, mut surplus] = [(); 2].map(|()| vec![0f32; problem.value_len() - 1]);
    let mut half = vec![f16::ZERO; problem.weights_len()];
    for (role, to, words) in [
        (Role::GradValue, (&mut short).into(), &*one_short("grad_value", value.len())),
        (Role::GradWeights, (&mut half).into(), "`grad_attention_weights` is f16"),
        (
            Role::GradLogits,
            (&mut surplus).into(),
            "`grad_attention_logits` is to be written, but the call computes no such tensor; leave it out",
        ),
    ] {
        let to: TensorViewMut<'_> = to;
        let error = plan.backward(right.clone(), grad, [(role, to)]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_larger_buffer_is_written_in_front_only() {
    let problem = decoder().build().unwrap();
    let [value, locations, weights, _] = in_f32(&Call::random(problem.clone(), 1));
    let mut output = vec![f32::NAN; problem.output_len() + 3];
    plan(&problem, 2).forward([&value, &locations, &weights], &mut output).unwrap();
    let (front, back) = output.split_at(problem.output_len());
    assert!(front.iter().all(|x| !x.is_nan()) && back.iter().all(|x| x.is_nan()));
}

/// With an instruction set in the options. Without one the reference computes such calls.
#[test]
fn what_the_kernels_cannot_do_they_refuse() {
    let refused = |problem: ProblemBuilder, options: CpuOptions| {
        CpuPlan::new(&problem.build().unwrap(), &options).unwrap_err()
    };
    let default = CpuOptions::default();
    for (problem, words) in [
        (decoder().dtype(DType::F64), "no f64 values"),
        (decoder().dtype(DType::F16).sampling_dtype(DType::Bf16), "locations and weights are bf16"),
        (decoder().dtype(DType::F32).output_dtype(DType::F16), "the output is f16"),
        (decoder().levels([(1, (1i64 << 24) + 1)]), "a level is beyond 2^24 pixels a side"),
    ] {
        let error = refused(problem.clone(), CpuOptions { isa: Some(Isa::Scalar), ..default });
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let reference = CpuPlan::new(&problem.build().unwrap(), &default).unwrap();
        assert_eq!((reference.threads(), reference.isa()), (1, Isa::Scalar));
        assert_eq!(reference.workspace_bytes(), 0);
    }
    let error = refused(decoder(), CpuOptions { threads: Some(0), ..default });
    assert!(matches!(error, Error::Threads { threads: 0, .. }), "{error}");
    for threads in [100_000, usize::MAX] {
        let error = refused(decoder(), CpuOptions { threads: Some(threads), isa: None });
        assert!(matches!(error, Error::Threads { .. }), "{error}");
        assert!(error.to_string().contains("at most"), "{error}");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        let error = refused(decoder(), CpuOptions { isa: Some(isa), ..default });
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}

#[test]
fn one_shot_calls_take_f64_and_everything_else() {
    let formats = [
        (DType::F64, DType::F64, DType::F64),
        (DType::F32, DType::F64, DType::F16),
        (DType::Bf16, DType::F16, DType::Bf16),
        (DType::F32, DType::F32, DType::F32),
        (DType::F16, DType::F32, DType::F32),
        (DType::Bf16, DType::Bf16, DType::F32),
    ];
    let [_, boxes, _] = fused();
    for (format, (dtype, sampling, output)) in formats.into_iter().enumerate() {
        for (order, layout) in ValueLayout::ALL.into_iter().enumerate() {
            // Of Miri each format and each layout, not each pair.
            if cfg!(miri) && format % 3 != order {
                continue;
            }
            for builder in [decoder(), boxes.clone()] {
                let builder = builder.dtype(dtype).sampling_dtype(sampling).layout(layout);
                check_one_shot(&Call::random(builder.output_dtype(output).build().unwrap(), 8));
            }
        }
    }
}

fn check_one_shot(call: &Call) {
    let (problem, roles) = (&call.problem, call.problem.operator().inputs);
    let wants = [None, Some(Gradients::all_of(problem))];
    let cases = wants.map(|wants| call.case(wants));
    let [mut forward, mut backward] =
        cases.each_ref().map(|case| CallMemory::of_case(case, &call.inputs));
    let inputs = roles.iter().map(|&role| forward.read[role].view());
    let to = forward.written.iter_mut().map(|(_, output)| output.view_mut()).next();
    msdeform::forward(problem, inputs, to.unwrap()).unwrap();
    let inputs = roles.iter().map(|&role| backward.read[role].view());
    let gradients = backward.written.iter_mut().map(|(role, to)| (role, to.view_mut()));
    let grad = backward.read[Role::GradOutput].view();
    msdeform::backward(problem, inputs, grad, gradients).unwrap();
    let written = [forward, backward].map(|memory| memory.results().unwrap());
    call.check(&written.into_iter().flatten().collect()).unwrap();
}

/// In the kernels, and in the reference, which computes `f64`.
#[test]
fn rows_of_one_projection_and_shared_references_give_the_bits_of_packed_tensors() {
    for dtype in [DType::F32, DType::F64] {
        let problem = fused()[0].clone().dtype(dtype).build().unwrap();
        for wants in [None, Some(Gradients::all_of(&problem))] {
            let mut case = Case::plain(problem.clone(), wants);
            let packed = case.inputs();
            let mut plan = plan(&problem, 1);
            let expected = run_plan(&mut plan, &case, &packed).unwrap();
            case.source_memory = SourceMemory::Projection;
            let projected = case.inputs();
            assert_eq!(packed, projected, "the same call");
            assert_eq!(run_plan(&mut plan, &case, &projected).unwrap(), expected);
        }
    }
}

#[test]
fn inputs_of_another_operator_are_refused_by_what_the_problem_reads() {
    for dtype in [DType::F32, DType::F64] {
        let given = Problem::builder().queries(2).levels([(3, 4)]).dtype(dtype).build().unwrap();
        let from = given.to_builder().offsets(Offsets::from_points()).build().unwrap();
        let zeros = vec![0f32; 12];
        let of_fused = "the call has 3 inputs, but the fused operator of the problem reads `value`, `reference_points`, \
            `sampling_offsets`, `attention_logits`; pass those in this order, or build the problem without `.offsets(rule)`";
        let error = msdeform::forward(&from, [&zeros; 3], &mut zeros.clone()).unwrap_err();
        assert_eq!(error.to_string(), of_fused);
        let nothing: [(Role, &mut Vec<f32>); 0] = [];
        let error = msdeform::backward(&from, [&zeros; 3], &zeros, nothing).unwrap_err();
        assert_eq!(error.to_string(), of_fused);
        let error = msdeform::forward(&given, [&zeros; 4], &mut zeros.clone()).unwrap_err();
        assert!(matches!(error, Error::Inputs { found: 4, .. }), "{error:?}");
        assert!(error.to_string().ends_with("build the problem with `.offsets(rule)`"), "{error}");
    }
}

#[test]
fn one_shot_calls_check_before_they_compute() {
    let problem = decoder().dtype(DType::F64).build().unwrap();
    let value = vec![0f64; problem.value_len()];
    let locations = vec![0f64; problem.locations_len()];
    let weights = vec![0f64; problem.weights_len()];
    let mut short = vec![0f64; problem.output_len() - 1];
    let error =
        msdeform::forward(&problem, [&value, &locations, &weights], &mut short).unwrap_err();
    assert!(error.to_string().contains("`output` has"), "{error}");
    assert!(error.to_string().ends_with("; give a larger buffer"), "{error}");
    let error = msdeform::forward(&problem, [&value, &weights, &weights], &mut short).unwrap_err();
    assert!(matches!(error, Error::LengthMismatch { tensor: "sampling_locations", .. }), "{error}");
}

#[test]
fn scratch_memory_does_not_grow_after_the_first_calls() {
    let call = Call::random(encoder().build().unwrap(), 2);
    let mut plan = plan(&call.problem, 2);
    assert_eq!(plan.workspace_bytes(), 0);
    call.run(&mut plan);
    let bytes = plan.workspace_bytes();
    assert!(bytes > 0);
    call.run(&mut plan);
    assert!(plan.workspace_bytes() <= 2 * bytes, "another worker may have come to its first task");
    assert_eq!(plan.problem(), &call.problem);
    assert_eq!(plan.isa(), Isa::best());
}

#[test]
fn the_registry_names_every_variant_once_and_the_baselines_first() {
    let variants = cpu::variants();
    let mut ids: Vec<_> = variants.iter().map(|variant| variant.spec.id).collect();
    assert_eq!(ids[0], "fwd_cpu_scalar");
    for variant in variants {
        let prefix = match variant.spec.direction {
            Direction::Forward => "fwd",
            Direction::Backward => "bwd",
        };
        assert_eq!(variant.spec.id, format!("{prefix}_cpu_{}", variant.isa.name()));
        assert_eq!(variant.is_available(), variant.isa.is_available());
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 2 * Isa::ALL.len());
}

#[test]
fn the_reference_agrees_on_the_test_problems_having_something_to_compare() {
    for builder in [encoder(), decoder()] {
        let call = Call::random(builder.build().unwrap(), 3);
        let inputs = Operator::ALL[0].inputs.iter().map(|&role| (role, call.inputs[role].to_f64()));
        let inputs: BTreeMap<Role, Vec<f64>> = inputs.collect();
        let found = reference::compute(&call.problem, Direction::Forward, |role| &inputs[&role]);
        let output = &found[0].1;
        assert!(output.iter().filter(|&&x| x != 0.0).count() > output.len() / 2);
    }
}

/// Points are declared, and take no memory where there is no query to have them.
#[test]
#[cfg_attr(miri, ignore = "Miri ends where an allocation fails")]
fn any_number_of_points_of_no_queries_is_a_plan_and_of_some_an_error() {
    let one_thread = CpuOptions { threads: Some(1), isa: None };
    let none = Problem::builder().queries(0).levels([(2, 2)]).points(1 << 56).build().unwrap();
    let mut plan = CpuPlan::new(&none, &one_thread).unwrap();
    let (value, nothing, mut output) = (vec![1f32; 4], Vec::<f32>::new(), Vec::<f32>::new());
    let inputs = [&value, &nothing, &nothing];
    plan.forward(inputs, &mut output).unwrap();
    let mut grad_value = vec![f32::NAN; 4];
    plan.backward(inputs, &nothing, [(Role::GradValue, &mut grad_value)]).unwrap();
    assert_eq!(grad_value, [0.0; 4]);
    let some = none.to_builder().queries(1).build().unwrap();
    let error = CpuPlan::new(&some, &one_thread).unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
}

/// A few bytes describe more images and heads than can be counted in a day; where they have nothing, nothing is done.
#[test]
fn any_number_of_images_without_anything_in_them_takes_no_time() {
    for (channels, points) in [(0, 0), (3, 0), (0, 2)] {
        let problem = Problem::builder()
            .batch(1 << 40)
            .heads(if points == 0 { 1 << 10 } else { 0 })
            .channels(channels)
            .queries(if channels == 0 { 5 } else { 0 })
            .levels::<i64>([])
            .build()
            .unwrap();
        let nothing = Vec::<f32>::new();
        let inputs = [&nothing; 3];
        let mut plan = CpuPlan::new(&problem, &CpuOptions { threads: Some(2), isa: None }).unwrap();
        plan.forward(inputs, &mut Vec::<f32>::new()).unwrap();
        let mut written = [Role::GradValue, Role::GradLocations, Role::GradWeights]
            .map(|role| (role, Vec::<f32>::new()));
        let gradients = written.iter_mut().map(|(role, numbers)| (*role, numbers));
        plan.backward(inputs, &nothing, gradients).unwrap();
        for direction in Direction::ALL {
            let found = reference::compute(&problem, direction, |_| &[]);
            assert!(found.iter().all(|(_, numbers)| numbers.is_empty()));
        }
    }
}
