//! How plans are launched: graphs, streams, threads, borrowed handles, strange pointers and strides.

use half::f16;
use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Direction, Element, Mode, Problem, Role, ValueLayout, ValueStrides};
use msdeform_cuda::{
    BackwardOptions, DeviceBuffer, Engine, Error, Event, Graph, Plan, PlanOptions, Pointers, Stream,
};
use msdeform_cuda_lab::registry::find;
use msdeform_lab::Case;
use msdeform_lab::oracle::expect;

use crate::conformance::compare;
use crate::resident::{Resident, compare as compare_tensor};
use crate::{Outcome, engine, engine_and_stream, ensure, shared_engine};

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("launch::a_graph_keeps_the_window_of_persisting_values", persisting_window),
        Trial::test("launch::a_failed_capture_leaves_the_stream_usable", failed_capture),
        Trial::test("launch::two_streams_do_not_disturb_each_other", two_streams),
        Trial::test("launch::one_plan_serves_many_threads", many_threads),
        Trial::test("launch::borrowed_and_default_streams", other_streams),
        Trial::test("launch::misaligned_pointers_compile_when_they_come", late_fallback),
        Trial::test("launch::events_order_and_time", events),
        Trial::test("launch::an_empty_output_launches_nothing", empty),
    ];
    for direction in Direction::ALL {
        let test = |name: &str, body: fn(Direction) -> Outcome| {
            Trial::test(format!("{direction}::{name}"), move || body(direction))
        };
        trials.extend([
            test("graph_replays_follow_the_inputs", graph),
            test("misaligned_pointers_give_the_same_result", misaligned),
            test("strided_values_past_2_31_elements", far_strides),
        ]);
    }
    trials
}

fn problem(queries: usize) -> Problem {
    let levels = [(12, 20), (6, 10), (3, 5)];
    let builder = Problem::builder().batch(2).heads(4).channels(32).queries(queries).points(4);
    builder.levels(levels).dtype(DType::F16).build().unwrap()
}

fn forward(stream: &Stream, queries: usize, seed: u64) -> Result<Resident<f16>, Failed> {
    Resident::new(stream, &problem(queries), Direction::Forward, seed)
}

/// An ordinary plan in a direction.
pub fn plan(
    engine: &Engine,
    problem: &Problem,
    direction: Direction,
) -> msdeform_cuda::Result<Plan> {
    match direction {
        Direction::Forward => Plan::forward(engine, problem),
        Direction::Backward => Plan::backward(engine, problem),
    }
}

/// The backward in f32, whose gradients of values are sums in place.
fn graph(direction: Direction) -> Outcome {
    match direction {
        Direction::Forward => graph_of::<f16>(direction),
        Direction::Backward => graph_of::<f32>(direction),
    }
}

fn graph_of<T: Element>(direction: Direction) -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let problem = problem(50).to_builder().dtype(T::DTYPE).sampling_dtype(T::DTYPE).build()?;
    let mut resident = Resident::<T>::new(&stream, &problem, direction, 5)?;
    let plan = plan(&engine, &problem, direction)?;
    let pointers = resident.pointers();
    // SAFETY: the tensors and the plan outlive the replays, which one stream orders.
    let graph = Graph::capture(&stream, |stream| unsafe { plan.launch(stream, &pointers) })?;
    ensure!(resident.is_untouched(&stream)?, "capturing must not run anything");
    for seed in [5, 6, 7] {
        resident.redraw(&stream, seed)?;
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }?;
        resident.check(&stream)?;
    }
    Ok(())
}

fn persisting_window() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let problem = problem(50).to_builder().layout(ValueLayout::HeadMajor).build()?;
    let mut resident = Resident::<f16>::new(&stream, &problem, Direction::Forward, 9)?;
    let options = PlanOptions { variant: Some(find("fwd_l2_policy")?), ..Default::default() };
    let plan = Plan::new(&engine, &problem, &options)?;
    resident.run(&stream, &plan)?;
    resident.check(&stream)?;
    resident.poison(&stream)?;
    let graph = Graph::capture(&stream, |stream| resident.run(stream, &plan))?;
    // SAFETY: everything that was captured is in `resident` and `plan`, which outlive the replay.
    unsafe { graph.launch(&stream) }?;
    resident.check(&stream)
}

fn failed_capture() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let mut resident = forward(&stream, 50, 5)?;
    let plan = Plan::forward(&engine, &problem(50))?;
    // Waiting cannot be captured.
    let failed = Graph::capture(&stream, |stream| {
        resident.run(stream, &plan)?;
        stream.synchronize()
    });
    ensure!(failed.is_err(), "waiting inside of a capture must fail");
    resident.run(&stream, &plan)?;
    resident.check(&stream)
}

fn two_streams() -> Outcome {
    let engine = engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let plans = [Plan::forward(&engine, &problem(700))?, Plan::forward(&engine, &problem(31))?];
    let mut residents = [forward(&streams[0], 700, 7)?, forward(&streams[1], 31, 8)?];
    for _ in 0..50 {
        for ((resident, stream), plan) in residents.iter_mut().zip(&streams).zip(&plans) {
            resident.run(stream, plan)?;
        }
    }
    residents.iter().zip(&streams).try_for_each(|(resident, stream)| resident.check(stream))
}

fn many_threads() -> Outcome {
    let engine = engine()?;
    let plan = Plan::forward(&engine, &problem(123))?;
    let work = |seed: u64| -> Outcome {
        let stream = Stream::new(engine.context())?;
        let mut resident = forward(&stream, 123, seed)?;
        for _ in 0..20 {
            resident.run(&stream, &plan)?;
        }
        resident.check(&stream)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

fn other_streams() -> Outcome {
    let engine = engine()?;
    let owner = Stream::new(engine.context())?;
    // SAFETY: `owner` outlives the borrowed handle.
    let borrowed = unsafe { Stream::borrow(engine.context(), owner.raw_handle()) }?;
    let default = Stream::default_of(engine.context());
    for stream in [&borrowed, &default] {
        let mut resident = forward(stream, 64, 9)?;
        resident.run(stream, &Plan::forward(&engine, &problem(64))?)?;
        resident.check(stream)?;
    }
    Ok(())
}

/// Every tensor in turn one element off, and all of them: the fast path cannot take it, the result must not change.
fn misaligned(direction: Direction) -> Outcome {
    let aligned = Case::varied(problem(50), direction, 10);
    let modes = if direction == Direction::Forward { &[Mode::Fast][..] } else { &Mode::ALL };
    for &mode in modes {
        for which in 0..8 {
            let starts = std::array::from_fn(|tensor| usize::from(tensor == which || which == 7));
            let mut case = aligned.clone();
            (case.mode, case.starts) = (mode, starts);
            compare(&case, None)?;
        }
    }
    Ok(())
}

/// The second image starts past 2^31 elements: nothing between the two is read, and gradients are packed all the same.
fn far_strides(direction: Direction) -> Outcome {
    let (engine, stream) = shared_engine()?;
    let problem = problem(65);
    let strides = ValueStrides { batch: (1 << 31) + 64, ..ValueStrides::packed(&problem) };
    let backward = (direction == Direction::Backward).then(BackwardOptions::default);
    let options = PlanOptions { strides: Some(strides), backward, ..Default::default() };
    let plan = Plan::new(&engine, &problem, &options)?;
    let mut resident = Resident::<f16>::new(&stream, &problem, direction, 3)?;
    resident.spread_images(&stream, strides)?;
    resident.run(&stream, &plan)?;
    resident.check(&stream)
}

/// But not inside of a capture, where loading code is refused, and said, before anything else is.
fn late_fallback() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let problem = problem(50);
    let resident = forward(&stream, 50, 12)?;
    let output = DeviceBuffer::<f16>::filled(&stream, problem.output_len() + 1, 0xff)?;
    let plan = Plan::forward(&engine, &problem)?;
    ensure!(engine.code().counts().compiled == 1, "{:?}", engine.code().counts());
    let pointers = resident.pointers().with(Role::Output, output.address() + 2);
    // SAFETY: the buffers hold the tensors from these pointers on, and outlive the launches and the replay.
    let launch = |stream: &Stream| unsafe { plan.launch(stream, &pointers) };
    let refused = Graph::capture(&stream, launch).map(drop);
    ensure!(matches!(refused, Err(Error::UncompiledInCapture { .. })), "{refused:?}");
    launch(&stream)?;
    ensure!(engine.code().counts().compiled == 2, "{:?}", engine.code().counts());
    let graph = Graph::capture(&stream, launch)?;
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }?;
    let found: Vec<f64> = output.to_host(&stream)?[1..].iter().map(|x| x.to_f64()).collect();
    compare_tensor(&expect(&resident.case, &resident.inputs)[0], &found)
}

fn events() -> Outcome {
    let engine = engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let mut resident = forward(&streams[0], 500, 11)?;
    let plan = Plan::forward(&engine, &problem(500))?;
    let (start, end) = (Event::new(engine.context())?, Event::new(engine.context())?);
    start.record(&streams[0])?;
    resident.run(&streams[0], &plan)?;
    end.record(&streams[0])?;
    streams[1].wait_for(&end)?;
    resident.check(&streams[1])?;
    end.synchronize()?;
    let time_us = end.elapsed_us_since(&start)?;
    ensure!(time_us > 0.0 && time_us < 1e6, "{time_us} us");
    Ok(())
}

fn empty() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let plan = Plan::forward(&engine, &problem(0))?;
    ensure!(plan.kernels().next().is_none(), "a kernel for nothing");
    // SAFETY: nothing is launched.
    unsafe { plan.launch(&stream, &Pointers::default()) }?;
    Ok(())
}
