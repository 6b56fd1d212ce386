//! Every backward variant against the f64 reference, and what is promised about backward plans.

use half::f16;
use libtest_mimic::Trial;
use msdeform::{
    ATTENTION, DType, Direction, Element, Error as ProblemError, Mode, Problem, ProblemBuilder,
    ValueLayout,
};
use msdeform_cuda::variants::Variant;
use msdeform_cuda::{
    BackwardOptions, DeviceBuffer, Error, Gradients, Graph, OutputStrides, Plan, PlanOptions,
    Stream, ValueStrides, WORKSPACE_ALIGNMENT, Workspace,
};
use msdeform_cuda_lab::REGISTRY;

use crate::cases::{FORMATS, SPARSE, for_formats, problems, run_forward, with_gaps};
use crate::conformance::shared_engine;
use crate::gradients::BackwardCase;
use crate::{Outcome, engine, ensure};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let backward = |variant: &&&dyn Variant| variant.spec().direction == Direction::Backward;
    for &variant in REGISTRY.iter().filter(backward) {
        let id = variant.spec().id;
        for layout in ValueLayout::ALL {
            let mut built: Vec<(&str, Problem)> = problems()
                .into_iter()
                .map(|(name, problem)| (name, problem.layout(layout).build().unwrap()))
                .collect();
            built.push(("gaps", with_gaps(layout)));
            for (name, problem) in built {
                trials.push(Trial::test(format!("backward::{id}::{layout}::{name}"), move || {
                    in_every_format(variant, &problem)
                }));
            }
        }
        let test = |name: &str, body: fn(&'static dyn Variant) -> Outcome| {
            Trial::test(format!("backward::{id}::{name}"), move || body(variant))
        };
        trials.push(test("all_samples_in_one_place", one_place));
        trials.push(test("only_what_is_asked_for_is_written", subsets));
        trials.push(test("strides_of_the_output_gradient", upstream_strides));
        trials.push(test("a_nan_query_stays_among_its_samples", one_nan));
        trials.push(test("every_run_has_the_same_bits_if_promised", same_bits));
        if variant.is_deterministic() {
            trials.push(test("calls_back_to_back_do_not_mix", back_to_back));
        }
    }
    trials.extend([
        Trial::test("backward::finite_differences_agree", finite_differences),
        Trial::test("backward::graph_replays_follow_the_inputs", graph),
        Trial::test("backward::misaligned_pointers_give_the_same_result", misaligned),
        Trial::test("backward::workspaces_of_the_caller", callers_workspace),
        Trial::test("backward::runs_on_two_streams_share_a_plan", two_streams),
        Trial::test("backward::empty_calls_leave_zeros", empty),
        Trial::test("backward::bad_pointers_are_named", bad_pointers),
        Trial::test("backward::other_sizes_compile_nothing", other_sizes),
        Trial::test("backward::strided_values_past_2_31_elements", far_strides),
    ]);
    trials
}

fn named(variant: &'static dyn Variant) -> PlanOptions {
    with(variant, BackwardOptions::default())
}

fn with(variant: &'static dyn Variant, backward: BackwardOptions) -> PlanOptions {
    PlanOptions { variant: Some(variant), ..PlanOptions::backward(backward) }
}

fn ordinary() -> Problem {
    let builder = Problem::builder().batch(2).heads(4).channels(32).queries(50).points(4);
    builder.levels([(12, 20), (6, 10), (3, 5)]).build().unwrap()
}

fn in_every_format(variant: &'static dyn Variant, problem: &Problem) -> Outcome {
    for (dtype, sampling) in FORMATS {
        let problem = problem.to_builder().dtype(dtype).sampling_dtype(sampling).build()?;
        for_formats!(dtype, sampling, check(&problem, &named(variant)))
            .map_err(|error| format!("{problem}: {error:?}"))?;
    }
    Ok(())
}

/// Compares one variant on one problem; what it refuses, it must refuse by name.
fn check<V: Element, S: Element>(problem: &Problem, options: &PlanOptions) -> Outcome {
    let strides = options.backward.and_then(|backward| backward.grad_output_strides);
    let strides = strides.unwrap_or_else(|| OutputStrides::packed(problem));
    run(&BackwardCase::<V, S>::with_strides(problem, 1, strides), options)
}

fn run<V: Element, S: Element>(case: &BackwardCase<V, S>, options: &PlanOptions) -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let plan = match Plan::new(&engine, &case.problem, options) {
        Err(Error::Problem(ProblemError::Unsupported { variant, reason })) => {
            let asked = options.variant.map(|variant| variant.spec().id);
            ensure!(Some(variant) == asked, "{variant} refused: {reason}");
            return Ok(());
        }
        plan => plan?,
    };
    let mut resident = case.upload(&stream)?;
    // Twice: a workspace that was used before is as good as a fresh one.
    for _ in 0..2 {
        resident.poison(&stream)?;
        resident.run(&stream, &plan)?;
        case.check(&resident.download(&stream)?)?;
    }
    Ok(())
}

/// The worst contention: every sample between the same four pixels.
fn one_place(variant: &'static dyn Variant) -> Outcome {
    fn crowded<V: Element>(variant: &'static dyn Variant, problem: ProblemBuilder) -> Outcome {
        let problem = problem.heads(2).channels(32).points(4).dtype(V::DTYPE).build()?;
        let mut case = BackwardCase::<V, V>::new(&problem, 4);
        case.inputs.locations.fill(V::from_f32(0.40625));
        case.expect();
        run(&case, &named(variant)).map_err(|error| format!("{problem}: {error:?}").into())
    }
    let dense = Problem::builder().queries(3000).levels([(13, 21), (5, 7)]);
    let sparse = |queries: usize| Problem::builder().queries(queries).levels(SPARSE);
    // Groups of tiles with lists that are too long for one warp.
    let long = Problem::builder().queries(300).levels([(100, 167)]);
    for problem in [dense, sparse(9), sparse(12), sparse(40), long] {
        crowded::<f32>(variant, problem.clone())?;
        crowded::<f16>(variant, problem)?;
    }
    Ok(())
}

fn subsets(variant: &'static dyn Variant) -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let case = BackwardCase::<f32, f32>::new(&ordinary(), 5);
    for gradients in Gradients::subsets() {
        let options = with(variant, BackwardOptions { gradients, ..Default::default() });
        let plan = Plan::new(&engine, &case.problem, &options)?;
        let mut resident = case.upload(&stream)?;
        resident.run(&stream, &plan)?;
        let mut found = resident.download(&stream)?;
        let untouched = |asked: bool, numbers: &[f32]| asked || numbers.iter().all(|x| x.is_nan());
        ensure!(untouched(gradients.value, &found.value), "{gradients}: wrote grad_value");
        ensure!(untouched(gradients.locations, &found.locations), "{gradients}: wrote locations");
        ensure!(untouched(gradients.weights, &found.weights), "{gradients}: wrote weights");
        let exact = |numbers: &[f64]| numbers.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        if !gradients.value {
            found.value = exact(&case.expected.value);
        }
        if !gradients.locations {
            found.locations = exact(&case.expected.locations);
        }
        if !gradients.weights {
            found.weights = exact(&case.expected.weights);
        }
        case.check(&found).map_err(|error| format!("{gradients}: {error:?}"))?;
    }
    Ok(())
}

fn upstream_strides(variant: &'static dyn Variant) -> Outcome {
    let problem = ordinary();
    let packed = OutputStrides::packed(&problem);
    for strides in [
        OutputStrides { batch: 0, query: 0, head: 0, channel: 0 },
        OutputStrides { batch: 0, ..packed },
        OutputStrides { batch: 64 * packed.batch, query: 3, head: 7 * 64, channel: 28 * 64 },
    ] {
        let backward = BackwardOptions { grad_output_strides: Some(strides), ..Default::default() };
        let options = with(variant, backward);
        check::<f32, f32>(&problem, &options).map_err(|error| format!("{strides:?}: {error:?}"))?;
    }
    Ok(())
}

fn one_nan(variant: &'static dyn Variant) -> Outcome {
    let sparse = Problem::builder().batch(2).heads(4).channels(32).queries(11).points(4);
    let sparse = sparse.levels(SPARSE).build()?;
    let long_lists = Problem::builder().heads(2).channels(32).queries(1000).points(4);
    let long_lists = long_lists.levels([(5, 7)]).build()?;
    for problem in [&ordinary(), &sparse, &long_lists] {
        one_nan_in(variant, problem)?;
    }
    Ok(())
}

fn one_nan_in(variant: &'static dyn Variant, problem: &Problem) -> Outcome {
    let mut case = BackwardCase::<f32, f32>::new(problem, 6);
    let row = case.problem.heads() * case.problem.channels();
    case.grad_output[7 * row..8 * row].fill(f32::NAN);
    case.expect();
    let (mut nan, mut numbers) = (0, 0);
    for gradient in &case.expected.weights {
        *if gradient.is_nan() { &mut nan } else { &mut numbers } += 1;
    }
    ensure!(nan > 0 && numbers > nan, "{nan} NaN, {numbers} not: nothing is shown");
    run(&case, &named(variant))
}

fn same_bits(variant: &'static dyn Variant) -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let builder = Problem::builder().batch(2).heads(8).channels(32).queries(1500).points(4);
    let problem = builder.levels([(25, 42), (13, 21), (7, 11)]).dtype(DType::F16).build()?;
    let case = BackwardCase::<f16, f16>::new(&problem, 7);
    let options =
        with(variant, BackwardOptions { mode: Mode::Deterministic, ..Default::default() });
    let plan = Plan::new(&engine, &problem, &options);
    if !variant.is_deterministic() {
        let refused = plan.err().map_or_else(String::new, |error| error.to_string());
        ensure!(refused.contains(variant.spec().id), "not refused by name: `{refused}`");
        return Ok(());
    }
    let plan = plan?;
    let mut resident = case.upload(&stream)?;
    let mut first = None;
    for run in 0..20 {
        resident.poison(&stream)?;
        resident.run(&stream, &plan)?;
        let found = resident.download(&stream)?;
        let bits = found.bits();
        ensure!(*first.get_or_insert_with(|| bits.clone()) == bits, "run {run} has other bits");
        if run == 0 {
            case.check(&found)?;
        }
    }
    Ok(())
}

/// Launches of a call overlap, and calls share a workspace: nothing of one call may reach the next. Two of them alternate,
/// many in flight, and each must give the bits that it gives alone.
fn back_to_back(variant: &'static dyn Variant) -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let builder = Problem::builder().batch(2).heads(2).channels(32).queries(300).points(4);
    let problem = builder.levels([(50, 84), (25, 42), (13, 21)]).build()?;
    let options =
        with(variant, BackwardOptions { mode: Mode::Deterministic, ..Default::default() });
    let plan = Plan::new(&engine, &problem, &options)?;
    let mut calls = Vec::new();
    for seed in [31, 32] {
        let mut resident = BackwardCase::<f32, f32>::new(&problem, seed).upload(&stream)?;
        resident.run(&stream, &plan)?;
        let alone = resident.download(&stream)?.bits();
        calls.push((resident, alone));
    }
    for round in 0..50 {
        for _ in 0..4 {
            for (resident, _) in &mut calls {
                resident.run(&stream, &plan)?;
            }
        }
        for (resident, alone) in &calls {
            let bits = resident.download(&stream)?.bits();
            ensure!(bits == *alone, "round {round}: a call has other bits than alone");
        }
    }
    Ok(())
}

/// The derivative of `sum(output * grad_output)` along a direction, by the GPU's own forward.
fn finite_differences() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let levels: [(i64, i64); 2] = [(9, 14), (5, 6)];
    let builder = Problem::builder().batch(2).heads(3).channels(32).queries(40).points(4);
    let problem = builder.levels(levels).build()?;
    let mut case = BackwardCase::<f32, f32>::new(&problem, 8);
    // Inside of a cell by 0.2 to 0.8, so that no step of 0.1 pixels leaves it.
    let mut random = crate::cases::Random(9);
    for (index, at) in case.inputs.locations.iter_mut().enumerate() {
        let level = levels[index / 2 % problem.samples() / 4];
        let size = if index % 2 == 0 { level.1 } else { level.0 } as f32;
        let cell = random.between(-1.0, size - 0.01).floor();
        *at = (cell + random.between(0.2, 0.8) + 0.5) / size;
    }
    case.expect();
    let mut resident = case.upload(&stream)?;
    resident.run(&stream, &Plan::backward(&engine, &problem)?)?;
    let found = resident.download(&stream)?;

    let plan = Plan::forward(&engine, &problem)?;
    let upstream = case.grad_output.clone();
    let mut output = DeviceBuffer::<f32>::filled(&stream, problem.output_len(), 0xff)?;
    let mut loss = |value: &[f32], locations: &[f32], weights: &[f32]| {
        let value = DeviceBuffer::from_host(&stream, value)?;
        let locations = DeviceBuffer::from_host(&stream, locations)?;
        let weights = DeviceBuffer::from_host(&stream, weights)?;
        run_forward(&plan, &stream, (&value, &locations, &weights), &mut output)?;
        let output = output.to_host(&stream)?;
        Ok::<f64, Error>(
            output.iter().zip(&upstream).map(|(&o, &g)| f64::from(o) * f64::from(g)).sum(),
        )
    };
    let mut direction = |len: usize, step: f32| -> Vec<f32> {
        (0..len).map(|_| random.between(-step, step)).collect()
    };
    let moved = |from: &[f32], by: &[f32], sign: f32| -> Vec<f32> {
        from.iter().zip(by).map(|(x, d)| x + sign * d).collect()
    };
    let along = |gradient: &[f32], by: &[f32]| -> f64 {
        gradient.iter().zip(by).map(|(&g, &d)| f64::from(g) * f64::from(d)).sum()
    };
    let inputs = &case.inputs;
    let (value, locations, weights) = (&inputs.value, &inputs.locations, &inputs.weights);
    let by_value = direction(value.len(), 0.5);
    let by_weights = direction(weights.len(), 0.5);
    // 0.1 pixels of the finest level.
    let by_locations = direction(locations.len(), 0.1 / 14.0);
    let differences = [
        (
            "value",
            loss(&moved(value, &by_value, 1.0), locations, weights)?
                - loss(&moved(value, &by_value, -1.0), locations, weights)?,
            along(&found.value, &by_value),
        ),
        (
            "locations",
            loss(value, &moved(locations, &by_locations, 1.0), weights)?
                - loss(value, &moved(locations, &by_locations, -1.0), weights)?,
            along(&found.locations, &by_locations),
        ),
        (
            "weights",
            loss(value, locations, &moved(weights, &by_weights, 1.0))?
                - loss(value, locations, &moved(weights, &by_weights, -1.0))?,
            along(&found.weights, &by_weights),
        ),
    ];
    for (tensor, difference, slope) in differences {
        let error = (difference / 2.0 - slope).abs() / slope.abs().max(1.0);
        // Written so that NaN fails.
        let agrees = error <= 1e-3;
        ensure!(agrees, "{tensor}: {} by differences, {slope} by the gradient", difference / 2.0);
    }
    Ok(())
}

fn graph() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let mut case = BackwardCase::<f32, f32>::new(&ordinary(), 10);
    let mut resident = case.upload(&stream)?;
    let plan = Plan::backward(&engine, &case.problem)?;
    let pointers = resident.pointers(0);
    // SAFETY: the buffers and the plan outlive the replays, which one stream orders.
    let graph = Graph::capture(&stream, |stream| unsafe { plan.launch(stream, &pointers) })?;
    let untouched = resident.download(&stream)?;
    ensure!(untouched.value.iter().all(|x| x.is_nan()), "capturing must not run anything");
    for seed in [11, 12] {
        case.grad_output = BackwardCase::<f32, f32>::new(&case.problem, seed).grad_output;
        case.expect();
        resident.grad_output.copy_from(&stream, 0, &case.grad_output)?;
        resident.poison(&stream)?;
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }?;
        case.check(&resident.download(&stream)?)?;
    }
    Ok(())
}

/// Every tensor in turn one element off: the fast path cannot take it, the result must not change.
fn misaligned() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let problem = ordinary().to_builder().dtype(DType::F16).sampling_dtype(DType::F16).build()?;
    let case = BackwardCase::<f16, f16>::new(&problem, 13);
    for mode in Mode::ALL {
        let options = PlanOptions::backward(BackwardOptions { mode, ..Default::default() });
        let plan = Plan::new(&engine, &problem, &options)?;
        for which in 0..8 {
            let by = |tensor: usize| usize::from(tensor == which || which == 7);
            let shifted = |data: &[f16], tensor: usize| -> msdeform_cuda::Result<_> {
                let mut buffer = DeviceBuffer::filled(&stream, data.len() + 1, 0xff)?;
                buffer.copy_from(&stream, by(tensor), data)?;
                Ok(buffer)
            };
            let mut resident = case.upload(&stream)?;
            resident.value = shifted(&case.inputs.value, 0)?;
            resident.locations = shifted(&case.inputs.locations, 1)?;
            resident.weights = shifted(&case.inputs.weights, 2)?;
            resident.grad_output = shifted(&case.grad_output, 3)?;
            resident.grad_value = DeviceBuffer::filled(&stream, problem.value_len() + 1, 0xff)?;
            resident.grad_locations =
                DeviceBuffer::filled(&stream, problem.locations_len() + 1, 0xff)?;
            resident.grad_weights = DeviceBuffer::filled(&stream, problem.weights_len() + 1, 0xff)?;
            let mut pointers = resident.pointers(0);
            for (tensor, (role, _)) in ATTENTION.tensors(Direction::Backward).enumerate() {
                pointers = pointers.with(role, pointers.get(role) + 2 * by(tensor) as u64);
            }
            // SAFETY: the buffers hold the tensors from these pointers on and outlive the launch.
            unsafe { plan.launch(&stream, &pointers) }?;
            let mut found = resident.download(&stream)?;
            for (tensor, numbers) in
                [(4, &mut found.value), (5, &mut found.locations), (6, &mut found.weights)]
            {
                let beside =
                    if by(tensor) == 1 { numbers.remove(0) } else { numbers.pop().unwrap() };
                ensure!(beside.is_nan(), "tensor {tensor}: wrote beside it");
            }
            case.check(&found).map_err(|e| format!("{mode}, tensor {which}: {e:?}"))?;
        }
    }
    Ok(())
}

fn callers_workspace() -> Outcome {
    let engine = shared_engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let problem = ordinary()
        .to_builder()
        .dtype(DType::F16)
        .sampling_dtype(DType::F16)
        .queries(400)
        .build()?;
    let cases = [14, 15].map(|seed| BackwardCase::<f16, f16>::new(&problem, seed));
    let in_half = |v: &&&dyn Variant| v.spec().dtypes.contains(&DType::F16);
    let backward = REGISTRY.iter().filter(|v| v.spec().direction == Direction::Backward);
    for variant in backward.filter(in_half) {
        let options = PlanOptions { workspace: Workspace::OfCaller, ..named(*variant) };
        let plan = Plan::new(&engine, &problem, &options)?;
        let bytes = plan.workspace_bytes();
        let residents = [cases[0].upload(&streams[0])?, cases[1].upload(&streams[1])?];
        if bytes > 0 {
            // SAFETY: refused before anything is queued.
            let missing = unsafe { plan.launch(&streams[0], &residents[0].pointers(0)) };
            let named = matches!(missing, Err(Error::NullPointer { tensor: "workspace" }));
            ensure!(named, "{missing:?}");
        }
        let memory = [
            DeviceBuffer::<f32>::filled(&streams[0], bytes / 4 + 64, 0xff)?,
            DeviceBuffer::<f32>::filled(&streams[1], bytes / 4 + 64, 0xff)?,
        ];
        if bytes > 0 {
            let odd = memory[0].address() + 4;
            // SAFETY: refused before anything is queued.
            let refused = unsafe { plan.launch(&streams[0], &residents[0].pointers(odd)) };
            let named = matches!(
                refused,
                Err(Error::MisalignedWorkspace { alignment: WORKSPACE_ALIGNMENT, .. })
            );
            ensure!(named, "{refused:?}");
        }
        for _ in 0..20 {
            for ((stream, resident), memory) in streams.iter().zip(&residents).zip(&memory) {
                // SAFETY: each stream has tensors and a workspace of its own, all alive until the end.
                unsafe { plan.launch(stream, &resident.pointers(memory.address())) }?;
            }
        }
        for ((stream, resident), case) in streams.iter().zip(&residents).zip(&cases) {
            case.check(&resident.download(stream)?)?;
        }
    }
    Ok(())
}

/// The plan's own workspace: `run` makes a later one wait for an earlier one.
fn two_streams() -> Outcome {
    let engine = shared_engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let problem = ordinary()
        .to_builder()
        .dtype(DType::F16)
        .sampling_dtype(DType::F16)
        .queries(900)
        .build()?;
    let cases = [16, 17].map(|seed| BackwardCase::<f16, f16>::new(&problem, seed));
    let plan = Plan::backward(&engine, &problem)?;
    let mut residents = [cases[0].upload(&streams[0])?, cases[1].upload(&streams[1])?];
    for _ in 0..20 {
        for (stream, resident) in streams.iter().zip(&mut residents) {
            resident.run(stream, &plan)?;
        }
    }
    for ((stream, resident), case) in streams.iter().zip(&residents).zip(&cases) {
        case.check(&resident.download(stream)?)?;
    }
    Ok(())
}

fn empty() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let builder = || ordinary().to_builder();
    for (name, problem) in [
        ("queries", builder().queries(0).build()?),
        ("images", builder().batch(0).build()?),
        ("points", builder().points(0).build()?),
        ("channels", builder().channels(0).build()?),
    ] {
        let case = BackwardCase::<f32, f32>::new(&problem, 18);
        let plan = Plan::backward(&engine, &problem)?;
        ensure!(plan.kernels().next().is_none(), "no {name}: kernels are launched");
        ensure!(plan.workspace_bytes() == 0, "no {name}: a workspace");
        let mut resident = case.upload(&stream)?;
        resident.run(&stream, &plan)?;
        let found = resident.download(&stream)?;
        let all = found.value.iter().chain(&found.locations).chain(&found.weights);
        ensure!(all.clone().all(|&x| x == 0.0), "no {name}: not zero");
    }
    Ok(())
}

fn bad_pointers() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let case = BackwardCase::<f32, f32>::new(&ordinary(), 19);
    let resident = case.upload(&stream)?;
    let plan = Plan::backward(&engine, &case.problem)?;
    for (role, _) in ATTENTION.tensors(Direction::Backward) {
        let host = 0f32;
        for address in [0, 0x1001, std::ptr::from_ref(&host).addr() as u64] {
            let (name, pointers) = (role.name(), resident.pointers(0).with(role, address));
            // SAFETY: refused before anything is queued.
            let refused = unsafe { plan.launch(&stream, &pointers) };
            let tensor = match refused {
                Err(
                    Error::NullPointer { tensor }
                    | Error::MisalignedElement { tensor, .. }
                    | Error::HostPointer { tensor, .. },
                ) => tensor,
                other => return Err(format!("{name} at {address:#x}: {other:?}").into()),
            };
            ensure!(tensor == name, "{name} is reported as {tensor}");
        }
    }
    Ok(())
}

fn other_sizes() -> Outcome {
    let engine = engine()?;
    let problem = ordinary();
    Plan::backward(&engine, &problem)?;
    let before = engine.jit_counts();
    let other = problem.to_builder().batch(3).queries(77).levels([(10, 8), (5, 4), (3, 2)]);
    Plan::backward(&engine, &other.build()?)?;
    let after = engine.jit_counts();
    ensure!(before.compiled > 0 && before == after, "{before:?} became {after:?}");
    Ok(())
}

/// The second image starts past 2^31 elements; its gradient is packed all the same.
fn far_strides() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let problem = ordinary().to_builder().dtype(DType::F16).sampling_dtype(DType::F16).build()?;
    let case = BackwardCase::<f16, f16>::new(&problem, 20);
    let packed = ValueStrides::packed(&problem);
    let strides = ValueStrides { batch: (1 << 31) + 64, ..packed };
    let backward = PlanOptions::backward(BackwardOptions::default());
    let options = PlanOptions { strides: Some(strides), ..backward };
    let plan = Plan::new(&engine, &problem, &options)?;
    let mut resident = case.upload(&stream)?;
    resident.value = DeviceBuffer::filled(&stream, strides.extent(&problem), 0xff)?;
    let (first, second) = case.inputs.value.split_at(packed.batch as usize);
    resident.value.copy_from(&stream, 0, first)?;
    resident.value.copy_from(&stream, strides.batch as usize, second)?;
    resident.run(&stream, &plan)?;
    case.check(&resident.download(&stream)?)
}
