//! What is promised about backward plans beyond their numbers.

use half::f16;
use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Direction, Element, Gradients, Mode, Problem};
use msdeform_cuda::variants::Variant;
use msdeform_cuda::{
    BackwardOptions, DeviceBuffer, Error, Plan, PlanOptions, Stream, WORKSPACE_ALIGNMENT, Workspace,
};
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::oracle::expect;

use crate::conformance::runner;
use crate::resident::{Resident, compare};
use crate::{Outcome, ensure, shared_engine};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for variant in variants() {
        let id = variant.spec.id;
        let test = |name: &str, body: fn(&'static Variant) -> Outcome| {
            Trial::test(format!("backward::{id}::{name}"), move || body(variant))
        };
        trials.push(test("only_what_is_asked_for_is_written", subsets));
        trials.push(test("every_run_has_the_same_bits_if_promised", same_bits));
        if variant.is_deterministic {
            trials.push(test("calls_back_to_back_do_not_mix", back_to_back));
        }
    }
    trials.extend([
        Trial::test("backward::workspaces_of_the_caller", callers_workspace),
        Trial::test("backward::runs_on_two_streams_share_a_plan", two_streams),
        Trial::test("backward::empty_calls_leave_zeros", empty),
    ]);
    trials
}

fn variants() -> impl Iterator<Item = &'static Variant> {
    let all = REGISTRY.iter().copied();
    all.filter(|variant| variant.spec.direction == Direction::Backward)
}

fn with(variant: &'static Variant, backward: BackwardOptions) -> PlanOptions {
    PlanOptions { variant: Some(variant), ..PlanOptions::backward(backward) }
}

fn deterministic(variant: &'static Variant) -> PlanOptions {
    with(variant, BackwardOptions { mode: Mode::Deterministic, ..Default::default() })
}

fn ordinary() -> Problem {
    let builder = Problem::builder().batch(2).heads(4).channels(32).queries(50).points(4);
    builder.levels([(12, 20), (6, 10), (3, 5)]).build().unwrap()
}

/// The same in `f16`, with so many queries.
fn in_half(queries: usize) -> Problem {
    let builder = ordinary().to_builder().dtype(DType::F16).sampling_dtype(DType::F16);
    builder.queries(queries).build().unwrap()
}

fn resident<T: Element>(
    stream: &Stream,
    problem: &Problem,
    seed: u64,
) -> Result<Resident<T>, Failed> {
    Resident::new(stream, problem, Direction::Backward, seed)
}

fn subsets(variant: &'static Variant) -> Outcome {
    let (engine, stream) = shared_engine()?;
    let mut resident = resident::<f32>(&stream, &ordinary(), 5)?;
    let expected = expect(&resident.case, &resident.inputs);
    for gradients in Gradients::subsets() {
        let options = with(variant, BackwardOptions { gradients, ..Default::default() });
        let plan = Plan::new(&engine, &resident.case.problem, &options)?;
        resident.poison(&stream)?;
        resident.run(&stream, &plan)?;
        for (expected, (role, found)) in expected.iter().zip(resident.download(&stream)?) {
            if gradients.includes(role) {
                compare(expected, &found).map_err(|error| format!("{gradients}: {error:?}"))?;
            } else {
                let untouched = found.iter().all(|x| x.is_nan());
                ensure!(untouched, "{gradients}: wrote {}", role.name());
            }
        }
    }
    Ok(())
}

fn same_bits(variant: &'static Variant) -> Outcome {
    let (engine, stream) = shared_engine()?;
    let builder = Problem::builder().batch(2).heads(8).channels(32).queries(1500).points(4);
    let problem = builder.levels([(25, 42), (13, 21), (7, 11)]).dtype(DType::F16).build()?;
    let plan = Plan::new(&engine, &problem, &deterministic(variant));
    if !variant.is_deterministic {
        let refused = plan.err().map_or_else(String::new, |error| error.to_string());
        ensure!(refused.contains(variant.spec.id), "not refused by name: `{refused}`");
        return Ok(());
    }
    let plan = plan?;
    let mut resident = resident::<f16>(&stream, &problem, 7)?;
    resident.run(&stream, &plan)?;
    resident.check(&stream)?;
    let first = resident.bits(&stream)?;
    for run in 1..20 {
        resident.poison(&stream)?;
        resident.run(&stream, &plan)?;
        ensure!(resident.bits(&stream)? == first, "run {run} has other bits");
    }
    Ok(())
}

/// Launches of a call overlap, and calls share a workspace: nothing of one call may reach the next. Two of them alternate,
/// many in flight, and each must give the bits that it gives alone.
fn back_to_back(variant: &'static Variant) -> Outcome {
    let (engine, stream) = shared_engine()?;
    let builder = Problem::builder().batch(2).heads(2).channels(32).queries(300).points(4);
    let problem = builder.levels([(50, 84), (25, 42), (13, 21)]).build()?;
    let plan = Plan::new(&engine, &problem, &deterministic(variant))?;
    let mut calls = Vec::new();
    for seed in [31, 32] {
        let mut resident = resident::<f32>(&stream, &problem, seed)?;
        resident.run(&stream, &plan)?;
        let alone = resident.bits(&stream)?;
        calls.push((resident, alone));
    }
    for round in 0..50 {
        for _ in 0..4 {
            for (resident, _) in &mut calls {
                resident.run(&stream, &plan)?;
            }
        }
        for (resident, alone) in &calls {
            let bits = resident.bits(&stream)?;
            ensure!(bits == *alone, "round {round}: a call has other bits than alone");
        }
    }
    Ok(())
}

fn callers_workspace() -> Outcome {
    let engine = runner()?.engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let problem = in_half(400);
    for variant in variants().filter(|v| v.spec.dtypes.contains(&DType::F16)) {
        let options = with(variant, BackwardOptions::default());
        let options = PlanOptions { workspace: Workspace::OfCaller, ..options };
        let plan = Plan::new(&engine, &problem, &options)?;
        let bytes = plan.workspace_bytes();
        let residents = [
            resident::<f16>(&streams[0], &problem, 14)?,
            resident::<f16>(&streams[1], &problem, 15)?,
        ];
        let memory = [
            DeviceBuffer::<f32>::filled(&streams[0], bytes / 4 + 64, 0xff)?,
            DeviceBuffer::<f32>::filled(&streams[1], bytes / 4 + 64, 0xff)?,
        ];
        if bytes > 0 {
            let launch = |workspace: u64| {
                let pointers = residents[0].pointers().with_workspace(workspace);
                // SAFETY: refused before anything is queued.
                unsafe { plan.launch(&streams[0], &pointers) }
            };
            let missing = launch(0);
            let named = matches!(missing, Err(Error::NullPointer { tensor: "workspace" }));
            ensure!(named, "{missing:?}");
            let refused = launch(memory[0].address() + 4);
            let named = matches!(
                refused,
                Err(Error::MisalignedWorkspace { alignment: WORKSPACE_ALIGNMENT, .. })
            );
            ensure!(named, "{refused:?}");
        }
        for _ in 0..20 {
            for ((stream, resident), memory) in streams.iter().zip(&residents).zip(&memory) {
                let pointers = resident.pointers().with_workspace(memory.address());
                // SAFETY: each stream has tensors and a workspace of its own, all alive until the end.
                unsafe { plan.launch(stream, &pointers) }?;
            }
        }
        for (stream, resident) in streams.iter().zip(&residents) {
            resident.check(stream)?;
        }
    }
    Ok(())
}

/// The plan's own workspace: `run` makes a later one wait for an earlier one.
fn two_streams() -> Outcome {
    let engine = runner()?.engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let problem = in_half(900);
    let plan = Plan::backward(&engine, &problem)?;
    let mut residents =
        [resident::<f16>(&streams[0], &problem, 16)?, resident::<f16>(&streams[1], &problem, 17)?];
    for _ in 0..20 {
        for (stream, resident) in streams.iter().zip(&mut residents) {
            resident.run(stream, &plan)?;
        }
    }
    streams.iter().zip(&residents).try_for_each(|(stream, resident)| resident.check(stream))
}

fn empty() -> Outcome {
    let (engine, stream) = shared_engine()?;
    let builder = || ordinary().to_builder();
    for (name, problem) in [
        ("queries", builder().queries(0).build()?),
        ("images", builder().batch(0).build()?),
        ("points", builder().points(0).build()?),
        ("channels", builder().channels(0).build()?),
    ] {
        let plan = Plan::backward(&engine, &problem)?;
        ensure!(plan.kernels().next().is_none(), "no {name}: kernels are launched");
        ensure!(plan.workspace_bytes() == 0, "no {name}: a workspace");
        let mut resident = resident::<f32>(&stream, &problem, 18)?;
        resident.run(&stream, &plan)?;
        let found = resident.download(&stream)?;
        let mut all = found.iter().flat_map(|(_, numbers)| numbers);
        ensure!(all.all(|&x| x == 0.0), "no {name}: not zero");
    }
    Ok(())
}
