//! Both operators against the reference in `f64`, in every format, with all of their gradients.

#![allow(clippy::unwrap_used, reason = "tests may fail, and helpers of tests too")]

mod support;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::ops::softmax;
use msdeform::{Direction, Problem, Role, reference};
use msdeform_candle::{Levels, Offsets, ms_deform_attn, ms_deform_attn_from_offsets};
use support::{assert_close, composed, elements, random};

const LEVELS: [(usize, usize); 3] = [(9, 7), (5, 6), (2, 3)];
const PIXELS: usize = 63 + 30 + 6;
const BATCH: usize = 2;
const HEADS: usize = 3;
const CHANNELS: usize = 8;
const QUERIES: usize = 11;
const POINTS: usize = 2;

const FORMATS: [(DType, msdeform::DType); 4] = [
    (DType::F32, msdeform::DType::F32),
    (DType::F16, msdeform::DType::F16),
    (DType::BF16, msdeform::DType::Bf16),
    (DType::F64, msdeform::DType::F64),
];

fn problem() -> msdeform::ProblemBuilder {
    let levels = LEVELS.map(|(height, width)| (height as u64, width as u64));
    Problem::builder()
        .batch(BATCH)
        .heads(HEADS)
        .channels(CHANNELS)
        .queries(QUERIES)
        .points(POINTS)
        .levels(levels)
}

/// Inputs of a call by role, as variables. Some samples lie outside of their level.
fn variables(roles: &[(Role, DType)], boxes: bool) -> Result<Vec<(Role, Var)>> {
    let samples = [BATCH, QUERIES, HEADS, LEVELS.len(), POINTS];
    let variable = |&(role, dtype): &(Role, DType)| {
        let tensor = match role {
            Role::Value => random(1, &[BATCH, PIXELS, HEADS, CHANNELS], 1.0, 0.0, dtype),
            Role::Locations => random(2, &[&samples[..], &[2]].concat(), 0.6, 0.5, dtype),
            Role::Weights => random(3, &samples, 0.5, 0.5, dtype),
            Role::Offsets => random(4, &[&samples[..], &[2]].concat(), 2.0, 0.1, dtype),
            Role::Logits => random(5, &samples, 2.0, 0.0, dtype),
            _ => {
                let components = if boxes { 4 } else { 2 };
                random(6, &[BATCH, QUERIES, LEVELS.len(), components], 0.3, 0.5, dtype)
            }
        };
        Ok((role, Var::from_tensor(&tensor?)?))
    };
    roles.iter().map(variable).collect()
}

/// Holds the output and every gradient against the reference on the same stored numbers.
fn check(problem: &Problem, inputs: &[(Role, Var)], output: &Tensor) -> Result<()> {
    let shape = [BATCH, QUERIES, HEADS * CHANNELS];
    let upstream = random(9, &shape, 1.0, 0.0, output.dtype())?;
    let gradients = (output * &upstream)?.sum_all()?.backward()?;
    let mut stored: Vec<(Role, Vec<f64>)> =
        inputs.iter().map(|(role, var)| (*role, elements(var))).collect();
    stored.push((Role::GradOutput, elements(&upstream)));
    let tensor = |wanted: Role| {
        stored.iter().find(|(role, _)| *role == wanted).map(|(_, x)| x.as_slice()).unwrap()
    };
    for direction in [Direction::Forward, Direction::Backward] {
        for (role, expected) in reference::compute(problem, direction, tensor) {
            let bound = problem.format_of(role).rel_l2_bound();
            if role == Role::Output {
                assert_close("output", &elements(output), &expected, bound);
                continue;
            }
            let (_, input) =
                inputs.iter().find(|(input, _)| input.gradient() == Some(role)).unwrap();
            let found = gradients.get(input).unwrap();
            assert_eq!((found.dims(), found.dtype()), (input.dims(), input.dtype()));
            assert_close(role.name(), &elements(found), &expected, bound);
        }
    }
    Ok(())
}

/// Asserts that two ways give close gradients for every input.
#[track_caller]
fn assert_gradients_close(
    inputs: &[(Role, Var)],
    found: &GradStore,
    expected: &GradStore,
    bound: f64,
) {
    for (role, input) in inputs {
        let [found, expected] = [found, expected].map(|all| elements(all.get(input).unwrap()));
        assert_close(role.name(), &found, &expected, bound);
    }
}

#[test]
fn output_and_gradients_are_those_of_the_reference_in_every_format() -> Result<()> {
    for (dtype, format) in FORMATS {
        let samples = if dtype == DType::F64 { vec![dtype] } else { vec![dtype, DType::F32] };
        for sampling in samples {
            let sampling_format = FORMATS.iter().find(|(d, _)| *d == sampling).unwrap().1;
            let problem = problem().dtype(format).sampling_dtype(sampling_format).build().unwrap();
            let roles =
                [(Role::Value, dtype), (Role::Locations, sampling), (Role::Weights, sampling)];
            let inputs = variables(&roles, false)?;
            let [value, locations, weights] = [0, 1, 2].map(|at: usize| &inputs[at].1);
            check(&problem, &inputs, &ms_deform_attn(value, LEVELS, locations, weights)?)?;
        }
    }
    Ok(())
}

#[test]
fn from_offsets_output_and_all_four_gradients_are_those_of_the_reference() -> Result<()> {
    for (dtype, format) in FORMATS {
        for boxes in [false, true] {
            let rule = if boxes { Offsets::from_boxes() } else { Offsets::from_points() };
            let references = if dtype == DType::F64 { dtype } else { DType::F32 };
            let reference_format = FORMATS.iter().find(|(d, _)| *d == references).unwrap().1;
            let problem =
                problem().dtype(format).offsets(rule).reference_dtype(reference_format).build();
            let roles = [
                (Role::Value, dtype),
                (Role::References, references),
                (Role::Offsets, dtype),
                (Role::Logits, dtype),
            ];
            let inputs = variables(&roles, boxes)?;
            let [value, references, offsets, logits] = [0, 1, 2, 3].map(|at: usize| &inputs[at].1);
            let output =
                ms_deform_attn_from_offsets(value, LEVELS, references, offsets, logits, rule)?;
            check(&problem.unwrap(), &inputs, &output)?;
        }
    }
    Ok(())
}

#[test]
fn references_that_are_not_tracked_give_the_same_without_a_gradient_of_theirs() -> Result<()> {
    let roles = [Role::Value, Role::References, Role::Offsets, Role::Logits];
    for dtype in [DType::F32, DType::F64] {
        let inputs = variables(&roles.map(|role| (role, dtype)), true)?;
        let [value, references, offsets, logits] = [0, 1, 2, 3].map(|at: usize| &inputs[at].1);
        let call = |references: &Tensor| {
            let rule = Offsets::from_boxes();
            ms_deform_attn_from_offsets(value, LEVELS, references, offsets, logits, rule)
        };
        let (tracked, constant) = (call(references)?, call(&references.detach())?);
        assert_eq!(elements(&tracked), elements(&constant));
        let (tracked, constant) = (tracked.sqr()?.backward()?, constant.sqr()?.backward()?);
        assert!(tracked.get(references).is_some() && constant.get(references).is_none());
        for input in [value, offsets, logits] {
            let [found, expected] =
                [&constant, &tracked].map(|all| elements(all.get(input).unwrap()));
            assert_eq!(found, expected);
        }
    }
    Ok(())
}

#[test]
fn only_the_inputs_that_are_tracked_have_gradients() -> Result<()> {
    let roles = [Role::Value, Role::Locations, Role::Weights].map(|role| (role, DType::F32));
    let inputs = variables(&roles, false)?;
    for tracked in 0..3 {
        let of = |at: usize| {
            let input = inputs[at].1.as_tensor();
            if at == tracked { input.clone() } else { input.detach() }
        };
        let output = ms_deform_attn(&of(0), LEVELS, &of(1), &of(2))?;
        let gradients = output.sqr()?.backward()?;
        for (at, (role, input)) in inputs.iter().enumerate() {
            assert_eq!(gradients.get(input).is_some(), at == tracked, "{role}");
        }
    }
    let constants: Vec<Tensor> = inputs.iter().map(|(_, input)| input.detach()).collect();
    let output = ms_deform_attn(&constants[0], LEVELS, &constants[1], &constants[2])?;
    assert!(!output.track_op());
    Ok(())
}

#[test]
fn candle_says_the_same_in_operations_of_its_own() -> Result<()> {
    let roles = [Role::Value, Role::Locations, Role::Weights].map(|role| (role, DType::F64));
    let inputs = variables(&roles, false)?;
    let [value, locations, weights] = [0, 1, 2].map(|at: usize| &inputs[at].1);
    let ours = ms_deform_attn(value, LEVELS, locations, weights)?;
    let theirs = composed(value, &LEVELS, locations, weights)?;
    assert_close("output", &elements(&ours), &elements(&theirs), 1e-12);
    let (ours, theirs) = (ours.sqr()?.backward()?, theirs.sqr()?.backward()?);
    assert_gradients_close(&inputs, &ours, &theirs, 1e-11);
    Ok(())
}

#[test]
fn from_offsets_is_what_a_layer_says_in_candle() -> Result<()> {
    let roles = [Role::Value, Role::References, Role::Offsets, Role::Logits];
    let inputs = variables(&roles.map(|role| (role, DType::F64)), false)?;
    let [value, references, offsets, logits] = [0, 1, 2, 3].map(|at: usize| &inputs[at].1);
    let sizes: Vec<f64> = LEVELS.iter().flat_map(|&(h, w)| [w as f64, h as f64]).collect();
    let sizes = Tensor::from_vec(sizes, (1, 1, 1, LEVELS.len(), 1, 2), &Device::Cpu)?;
    let around = references.unsqueeze(2)?.unsqueeze(4)?;
    let locations = offsets.broadcast_div(&sizes)?.broadcast_add(&around)?;
    let weights = softmax(&logits.flatten_from(3)?, 3)?.reshape(logits.shape())?;
    let theirs = composed(value, &LEVELS, &locations, &weights)?;
    let rule = Offsets::from_points();
    let ours = ms_deform_attn_from_offsets(value, LEVELS, references, offsets, logits, rule)?;
    assert_close("output", &elements(&ours), &elements(&theirs), 1e-12);
    let (ours, theirs) = (ours.sqr()?.backward()?, theirs.sqr()?.backward()?);
    assert_gradients_close(&inputs, &ours, &theirs, 1e-11);
    Ok(())
}

#[test]
fn references_of_one_image_or_query_serve_all_and_sum_their_gradients() -> Result<()> {
    let roles = [Role::Value, Role::References, Role::Offsets, Role::Logits];
    let inputs = variables(&roles.map(|role| (role, DType::F32)), false)?;
    let [value, references, offsets, logits] = [0, 1, 2, 3].map(|at: usize| &inputs[at].1);
    let call = |references: &Tensor| {
        let rule = Offsets::from_points();
        ms_deform_attn_from_offsets(value, LEVELS, references, offsets, logits, rule)
    };
    for (images, queries) in [(1, QUERIES), (BATCH, 1), (1, 1)] {
        let few = references.narrow(0, 0, images)?.narrow(1, 0, queries)?;
        let few = Var::from_tensor(&few.contiguous()?)?;
        let all = Var::from_tensor(&few.broadcast_as(references.shape())?.contiguous()?)?;
        let (by_few, by_all) = (call(&few)?, call(&all)?);
        assert_eq!(elements(&by_few), elements(&by_all));
        let by_few = by_few.sqr()?.backward()?;
        let mut expected = by_all.sqr()?.backward()?.get(&all).unwrap().clone();
        if images == 1 {
            expected = expected.sum_keepdim(0)?;
        }
        if queries == 1 {
            expected = expected.sum_keepdim(1)?;
        }
        let found = by_few.get(&few).unwrap();
        assert_close("references", &elements(found), &elements(&expected), 1e-5);
        // And where they are not tracked, which is another way through.
        assert_eq!(elements(&call(&few.detach())?), elements(&call(&all.detach())?));
    }
    Ok(())
}

#[test]
fn tensors_may_lie_anywhere() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let roles = [Role::Value, Role::Locations, Role::Weights].map(|role| (role, dtype));
        let inputs = variables(&roles, false)?;
        let [value, locations, weights] = [0, 1, 2].map(|at: usize| &inputs[at].1);
        let plain = ms_deform_attn(value, LEVELS, locations, weights)?;
        // The same numbers, in the memory order of another axis first, and in the middle of something larger.
        let turned = |x: &Tensor| x.transpose(1, 2)?.contiguous()?.transpose(1, 2);
        let within = |x: &Tensor| Tensor::cat(&[x, x, x], 0)?.narrow(0, BATCH, BATCH);
        for lying in [turned, within] {
            let variables = [value, locations, weights].map(|x| lying(x).unwrap());
            let output = ms_deform_attn(&variables[0], LEVELS, &variables[1], &variables[2])?;
            assert_eq!(elements(&output), elements(&plain));
            let (found, expected) = (output.sqr()?.backward()?, plain.sqr()?.backward()?);
            assert_gradients_close(&inputs, &found, &expected, 1e-6);
        }
    }
    Ok(())
}

#[test]
fn images_and_queries_of_references_offsets_and_logits_may_lie_anywhere() -> Result<()> {
    let samples = [HEADS, LEVELS.len() * POINTS];
    for dtype in [DType::F16, DType::F32, DType::F64] {
        // Queries first, as in models that are written so, and more of them than are attended with.
        let lying = |seed: u64, rest: &[usize], scale: f64, at: f64| -> Result<Var> {
            let shape = [&[QUERIES + 4, BATCH], rest].concat();
            Var::from_tensor(&random(seed, &shape, scale, at, dtype)?)
        };
        let references = lying(6, &[LEVELS.len(), 4], 0.3, 0.5)?;
        let offsets = lying(4, &[&samples[..], &[2]].concat(), 2.0, 0.1)?;
        let logits = lying(5, &samples, 2.0, 0.0)?;
        let value = random(1, &[BATCH, PIXELS, HEADS, CHANNELS], 1.0, 0.0, dtype)?;
        let call = |tracked: bool, copied: bool| -> Result<Tensor> {
            let view = |x: &Tensor| {
                let view = x.narrow(0, 3, QUERIES)?.transpose(0, 1)?;
                assert!(!view.is_contiguous());
                if copied { view.contiguous() } else { Ok(view) }
            };
            let around = if tracked { references.as_tensor() } else { &references.detach() };
            let (around, offsets, logits) = (view(around)?, view(&offsets)?, view(&logits)?);
            let rule = Offsets::from_boxes();
            Ok(ms_deform_attn_from_offsets(&value, LEVELS, &around, &offsets, &logits, rule)?)
        };
        for tracked in [false, true] {
            let (found, expected) = (call(tracked, false)?, call(tracked, true)?);
            assert!(elements(&found).iter().any(|&x| x != 0.0));
            assert_eq!(elements(&found), elements(&expected));
            let (found, expected) = (found.sqr()?.backward()?, expected.sqr()?.backward()?);
            assert_eq!(found.get(&references).is_some(), tracked);
            for input in [&references, &offsets, &logits] {
                let [found, expected] = [&found, &expected].map(|all| all.get(input).map(elements));
                assert_eq!(found, expected);
            }
        }
    }
    Ok(())
}

#[test]
fn levels_may_have_points_and_places_of_their_own() -> Result<()> {
    let (levels, points) = ([(4, 5), (3, 2)], [3, 1]);
    let problem = Problem::builder()
        .heads(HEADS)
        .channels(CHANNELS)
        .queries(QUERIES)
        .levels(levels.map(|(height, width)| (height as u64, width as u64)))
        .points_per_level(points)
        .level_starts([7u64, 0])
        .spatial(30)
        .build()
        .unwrap();
    let value = random(1, &problem.value_shape(), 1.0, 0.0, DType::F32)?;
    let locations = random(2, &problem.locations_shape(), 0.6, 0.5, DType::F32)?;
    let weights = random(3, &problem.weights_shape(), 1.0, 0.0, DType::F32)?;
    let levels = Levels::new(levels).points(points).starts([7, 0]);
    let output = ms_deform_attn(&value, &levels, &locations, &weights)?;
    let expected =
        reference::forward(&problem, &elements(&value), &elements(&locations), &elements(&weights));
    assert_close("output", &elements(&output), &expected, 1e-5);
    Ok(())
}

#[test]
fn sizes_of_zero_compute_nothing_and_are_no_error() -> Result<()> {
    let zeros = |shape: &[usize]| Var::zeros(shape, DType::F32, &Device::Cpu);
    for (batch, queries, channels) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let value = zeros(&[batch, 6, 2, channels])?;
        let locations = zeros(&[batch, queries, 2, 1, 2, 2])?;
        let weights = zeros(&[batch, queries, 2, 1, 2])?;
        let output = ms_deform_attn(&value, [(2, 3)], &locations, &weights)?;
        assert_eq!(output.dims(), [batch, queries, 2 * channels]);
        output.backward()?;
        let references = zeros(&[1, 1, 1, 2])?;
        for around in [references.as_tensor(), &references.detach()] {
            let (offsets, logits, rule) = (&locations, &weights, Offsets::from_points());
            let output =
                ms_deform_attn_from_offsets(&value, [(2, 3)], around, offsets, logits, rule)?;
            assert_eq!(output.dims(), [batch, queries, 2 * channels]);
            output.backward()?;
        }
    }
    Ok(())
}

#[test]
fn calls_from_many_threads_have_the_same_bits() -> Result<()> {
    let roles = [Role::Value, Role::Locations, Role::Weights].map(|role| (role, DType::F32));
    let inputs = variables(&roles, false)?;
    let call = || -> Result<(Vec<f64>, Vec<f64>)> {
        let [value, locations, weights] = [0, 1, 2].map(|at: usize| &inputs[at].1);
        let output = ms_deform_attn(value, LEVELS, locations, weights)?;
        let gradients = output.sqr()?.backward()?;
        Ok((elements(&output), elements(gradients.get(value).unwrap())))
    };
    let expected = call()?;
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..20).map(|_| call().unwrap()).collect::<Vec<_>>()))
            .collect();
        for found in calls.into_iter().flat_map(|call| call.join().unwrap()) {
            assert_eq!(found, expected);
        }
    });
    Ok(())
}
