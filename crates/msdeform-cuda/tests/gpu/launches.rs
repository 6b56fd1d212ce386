//! How plans are launched: graphs, streams, threads, borrowed handles, misaligned pointers.

use half::f16;
use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Problem, ValueLayout};
use msdeform_cuda::{DeviceBuffer, Engine, Error, Event, Graph, Plan, PlanOptions, Stream};
use msdeform_cuda_lab::registry::find;

use crate::cases::{Tensors, compare, forward_pointers, run_forward};
use crate::{Outcome, engine, ensure};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("launch::graph_replays_follow_the_inputs", graph),
        Trial::test("launch::a_graph_keeps_the_window_of_persisting_values", persisting_window),
        Trial::test("launch::a_failed_capture_leaves_the_stream_usable", failed_capture),
        Trial::test("launch::two_streams_do_not_disturb_each_other", two_streams),
        Trial::test("launch::one_plan_serves_many_threads", many_threads),
        Trial::test("launch::borrowed_and_default_streams", other_streams),
        Trial::test("launch::misaligned_pointers_give_the_same_result", misaligned),
        Trial::test(
            "launch::what_misaligned_pointers_need_is_compiled_when_they_come",
            late_fallback,
        ),
        Trial::test("launch::events_order_and_time", events),
        Trial::test("launch::an_empty_output_launches_nothing", empty),
    ]
}

fn problem(queries: usize) -> Problem {
    let levels = [(12, 20), (6, 10), (3, 5)];
    let builder = Problem::builder().batch(2).heads(4).channels(32).queries(queries).points(4);
    builder.levels(levels).dtype(DType::F16).build().unwrap()
}

/// A problem with everything on the device.
struct Resident {
    tensors: Tensors<f16, f16>,
    value: DeviceBuffer<f16>,
    locations: DeviceBuffer<f16>,
    weights: DeviceBuffer<f16>,
    output: DeviceBuffer<f16>,
    plan: Plan,
}

impl Resident {
    fn new(engine: &Engine, stream: &Stream, problem: &Problem, seed: u64) -> Result<Self, Failed> {
        let tensors = Tensors::<f16, f16>::new(problem, seed);
        Ok(Self {
            value: DeviceBuffer::from_host(stream, &tensors.value)?,
            locations: DeviceBuffer::from_host(stream, &tensors.locations)?,
            weights: DeviceBuffer::from_host(stream, &tensors.weights)?,
            output: DeviceBuffer::filled(stream, problem.output_len(), 0xff)?,
            plan: Plan::forward(engine, problem)?,
            tensors,
        })
    }

    fn launch(&mut self, stream: &Stream) -> msdeform_cuda::Result<()> {
        let Self { value, locations, weights, output, plan, .. } = self;
        run_forward(plan, stream, (value, locations, weights), output)
    }

    fn check(&self, stream: &Stream) -> Outcome {
        compare(&self.output.to_host(stream)?, &self.tensors.expected)
    }
}

fn graph() -> Outcome {
    let engine = engine()?;
    let stream = Stream::new(engine.context())?;
    let mut resident = Resident::new(&engine, &stream, &problem(50), 5)?;
    let graph = Graph::capture(&stream, |stream| resident.launch(stream))?;
    let untouched = resident.output.to_host(&stream)?;
    ensure!(untouched.iter().all(|x| x.is_nan()), "capturing must not run anything");
    // SAFETY: everything that was captured is in `resident`, which outlives the replays.
    unsafe { graph.launch(&stream) }?;
    resident.check(&stream)?;

    let other = Tensors::<f16, f16>::new(resident.plan.problem(), 6);
    resident.value.copy_from(&stream, 0, &other.value)?;
    resident.tensors.value = other.value;
    let problem = resident.plan.problem().clone();
    resident.tensors.expect(&problem);
    resident.output.fill(&stream, 0xff)?;
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }?;
    resident.check(&stream)
}

fn persisting_window() -> Outcome {
    let engine = engine()?;
    let stream = Stream::new(engine.context())?;
    let problem = problem(50).to_builder().layout(ValueLayout::HeadMajor).build()?;
    let mut resident = Resident::new(&engine, &stream, &problem, 9)?;
    let options = PlanOptions { variant: Some(find("fwd_l2_policy")?), ..Default::default() };
    resident.plan = Plan::new(&engine, &problem, &options)?;
    resident.launch(&stream)?;
    resident.check(&stream)?;
    resident.output.fill(&stream, 0xff)?;
    let graph = Graph::capture(&stream, |stream| resident.launch(stream))?;
    // SAFETY: everything that was captured is in `resident`, which outlives the replay.
    unsafe { graph.launch(&stream) }?;
    resident.check(&stream)
}

fn failed_capture() -> Outcome {
    let engine = engine()?;
    let stream = Stream::new(engine.context())?;
    let mut resident = Resident::new(&engine, &stream, &problem(50), 5)?;
    // Waiting cannot be captured.
    let failed = Graph::capture(&stream, |stream| {
        resident.launch(stream)?;
        stream.synchronize()
    });
    ensure!(failed.is_err(), "waiting inside of a capture must fail");
    resident.launch(&stream)?;
    resident.check(&stream)
}

fn two_streams() -> Outcome {
    let engine = engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let mut first = Resident::new(&engine, &streams[0], &problem(700), 7)?;
    let mut second = Resident::new(&engine, &streams[1], &problem(31), 8)?;
    for _ in 0..50 {
        first.launch(&streams[0])?;
        second.launch(&streams[1])?;
    }
    first.check(&streams[0])?;
    second.check(&streams[1])
}

fn many_threads() -> Outcome {
    let engine = engine()?;
    let problem = problem(123);
    let plan = Plan::forward(&engine, &problem)?;
    let work = |seed: u64| -> Outcome {
        let stream = Stream::new(engine.context())?;
        let mut resident = Resident::new(&engine, &stream, &problem, seed)?;
        for _ in 0..20 {
            let Resident { value, locations, weights, output, .. } = &mut resident;
            run_forward(&plan, &stream, (value, locations, weights), output)?;
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
        let mut resident = Resident::new(&engine, stream, &problem(64), 9)?;
        resident.launch(stream)?;
        resident.check(stream)?;
    }
    Ok(())
}

/// Every tensor in turn one element off: the fast path cannot take it, the result must not change.
fn misaligned() -> Outcome {
    let engine = engine()?;
    let stream = Stream::new(engine.context())?;
    let problem = problem(50);
    let tensors = Tensors::<f16, f16>::new(&problem, 10);
    let shifted = |data: &[f16], by: usize| -> Result<DeviceBuffer<f16>, Failed> {
        let mut buffer = DeviceBuffer::filled(&stream, data.len() + by, 0xff)?;
        buffer.copy_from(&stream, by, data)?;
        Ok(buffer)
    };
    let plan = Plan::forward(&engine, &problem)?;
    for which in 0..5 {
        let by = |tensor: usize| usize::from(tensor == which || which == 4);
        let value = shifted(&tensors.value, by(0))?;
        let locations = shifted(&tensors.locations, by(1))?;
        let weights = shifted(&tensors.weights, by(2))?;
        let output = DeviceBuffer::<f16>::filled(&stream, problem.output_len() + 1, 0xff)?;
        let at = |buffer: &DeviceBuffer<f16>, tensor| buffer.address() + 2 * by(tensor) as u64;
        let pointers = [at(&value, 0), at(&locations, 1), at(&weights, 2), at(&output, 3)];
        // SAFETY: the buffers hold the tensors from these pointers on and outlive the launch.
        unsafe { plan.launch(&stream, &forward_pointers(pointers)) }?;
        let mut found = output.to_host(&stream)?;
        let beside = if by(3) == 1 { found.remove(0) } else { found.pop().unwrap() };
        ensure!(beside.is_nan(), "wrote beside the output");
        compare(&found, &tensors.expected).map_err(|e| format!("tensor {which}: {e:?}"))?;
    }
    Ok(())
}

/// But not inside of a capture, where loading code is refused, and said, before anything else is.
fn late_fallback() -> Outcome {
    let engine = engine()?;
    let stream = Stream::new(engine.context())?;
    let problem = problem(50);
    let tensors = Tensors::<f16, f16>::new(&problem, 12);
    let value = DeviceBuffer::from_host(&stream, &tensors.value)?;
    let locations = DeviceBuffer::from_host(&stream, &tensors.locations)?;
    let weights = DeviceBuffer::from_host(&stream, &tensors.weights)?;
    let output = DeviceBuffer::<f16>::filled(&stream, problem.output_len() + 1, 0xff)?;
    let plan = Plan::forward(&engine, &problem)?;
    ensure!(engine.jit_counts().compiled == 1, "{:?}", engine.jit_counts());
    let [value, locations, weights] = [&value, &locations, &weights].map(DeviceBuffer::address);
    let pointers = forward_pointers([value, locations, weights, output.address() + 2]);
    // SAFETY: the buffers hold the tensors from these pointers on, and outlive the launches and the replay.
    let launch = |stream: &Stream| unsafe { plan.launch(stream, &pointers) };
    let refused = Graph::capture(&stream, launch).map(drop);
    ensure!(matches!(refused, Err(Error::UncompiledInCapture { .. })), "{refused:?}");
    launch(&stream)?;
    ensure!(engine.jit_counts().compiled == 2, "{:?}", engine.jit_counts());
    let graph = Graph::capture(&stream, launch)?;
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }?;
    compare(&output.to_host(&stream)?[1..], &tensors.expected)
}

fn events() -> Outcome {
    let engine = engine()?;
    let streams = [Stream::new(engine.context())?, Stream::new(engine.context())?];
    let mut resident = Resident::new(&engine, &streams[0], &problem(500), 11)?;
    let (start, end) = (Event::new(engine.context())?, Event::new(engine.context())?);
    start.record(&streams[0])?;
    resident.launch(&streams[0])?;
    end.record(&streams[0])?;
    streams[1].wait_for(&end)?;
    resident.check(&streams[1])?;
    end.synchronize()?;
    let time_us = end.elapsed_us_since(&start)?;
    ensure!(time_us > 0.0 && time_us < 1e6, "{time_us} us");
    Ok(())
}

fn empty() -> Outcome {
    let engine = engine()?;
    let stream = Stream::new(engine.context())?;
    let plan = Plan::forward(&engine, &problem(0))?;
    ensure!(plan.kernels().next().is_none(), "a kernel for nothing");
    // SAFETY: nothing is launched.
    unsafe { plan.launch(&stream, &forward_pointers([0; 4])) }?;
    Ok(())
}
