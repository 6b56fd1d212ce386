//! Bad input, and what the caller is told.

use libtest_mimic::{Failed, Trial};
use msdeform::{ATTENTION, DType, Direction, Problem, Role};
use msdeform_cuda::{
    Argument, DeviceBuffer, Engine, Error, Plan, PlanOptions, PointerChecks, Pointers, Stream,
};
use msdeform_cuda_lab::registry::find;

use crate::launches::plan;
use crate::resident::Resident;
use crate::{Outcome, engine, engine_and_stream, ensure};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("fault::bad_pointers_are_named", bad_pointers),
        Trial::test("fault::buffers_of_the_wrong_size_or_format_are_named", wrong_buffers),
        Trial::test("fault::no_memory_says_how_much", no_memory),
        Trial::test("fault::no_such_device", no_such_device),
        Trial::test("fault::variants_and_knobs_are_refused_by_name", refused_variants),
        Trial::test("fault::a_launch_the_driver_refuses_names_the_variant", refused_launch),
    ]
}

pub fn trials_on_two_devices() -> Vec<Trial> {
    vec![Trial::test("fault::tensors_and_streams_of_another_device", other_device)]
}

/// Fails unless an error is the expected one.
macro_rules! expect_error {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => return Err(format!("expected {}, got {other:?}", stringify!($pattern)).into()),
        }
    };
}

fn problem() -> Problem {
    // Enough queries that half of a tensor ends before the guard behind it does.
    let builder = Problem::builder().heads(2).channels(32).queries(400).points(4);
    builder.levels([(8, 8)]).dtype(DType::F32).build().unwrap()
}

fn resident(stream: &Stream) -> Result<Resident<f32>, Failed> {
    Resident::new(stream, &problem(), Direction::Forward, 1)
}

fn bad_pointers() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    for direction in Direction::ALL {
        bad_tensors(&engine, &stream, direction)?;
    }
    let problem = problem();
    let good = resident(&stream)?.pointers();
    let options = PlanOptions { pointer_checks: PointerChecks::Every, ..Default::default() };
    let plan = Plan::new(&engine, &problem, &options)?;
    // SAFETY: refused before the launch.
    let launch = |pointers: Pointers| unsafe { plan.launch(&stream, &pointers) };
    let small = DeviceBuffer::<f32>::filled(&stream, problem.locations_len() / 2, 0)?;
    expect_error!(
        launch(good.with(Role::Locations, small.address())),
        Error::BufferTooSmall { tensor: "sampling_locations", .. }
    );
    Ok(())
}

/// Every tensor in turn; the first launch of a plan looks the pointers up without being asked to.
fn bad_tensors(engine: &Engine, stream: &Stream, direction: Direction) -> Outcome {
    let problem = problem();
    let resident = Resident::<f32>::new(stream, &problem, direction, 1)?;
    let good = resident.pointers();
    let host = vec![0f32; problem.value_len()];
    for (role, _) in ATTENTION.tensors(direction) {
        let plan = plan(engine, &problem, direction)?;
        // SAFETY: either all pointers are good, or the plan refuses before it launches.
        let launch = |address| unsafe { plan.launch(stream, &good.with(role, address)) };
        let name = role.name();
        let is_named = |found: Result<(), Error>, expected: fn(&Error) -> Option<&str>| {
            let named = found.as_ref().err().and_then(expected) == Some(name);
            if named { Ok(()) } else { Err(Failed::from(format!("{name}: {found:?}"))) }
        };
        is_named(launch(0), |error| match error {
            Error::NullPointer { tensor } => Some(tensor),
            _ => None,
        })?;
        is_named(launch(good.get(role) + 1), |error| match error {
            Error::MisalignedElement { tensor, element_bytes: 4, .. } => Some(tensor),
            _ => None,
        })?;
        is_named(launch(host.as_ptr() as u64), |error| match error {
            Error::HostPointer { tensor, .. } => Some(tensor),
            _ => None,
        })?;
        launch(good.get(role))?;
        stream.synchronize()?;
    }
    Ok(())
}

fn wrong_buffers() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let problem = problem();
    let mut resident = resident(&stream)?;
    let plan = Plan::forward(&engine, &problem)?;
    let mut short = DeviceBuffer::<f32>::filled(&stream, problem.output_len() - 1, 0)?;
    let short = Argument::write(Role::Output, &mut short);
    expect_error!(
        plan.run(&stream, resident.arguments().chain([short])),
        Error::BufferTooSmall { tensor: "output", .. }
    );
    let half = DeviceBuffer::<half::f16>::filled(&stream, problem.locations_len(), 0)?;
    expect_error!(
        plan.run(&stream, resident.arguments().chain([Argument::read(Role::Locations, &half)])),
        Error::Problem(msdeform::Error::DtypeMismatch { tensor: "sampling_locations", .. })
    );
    resident.run(&stream, &plan)?;
    let output = DeviceBuffer::<f32>::filled(&stream, problem.output_len(), 0)?;
    expect_error!(
        plan.run(&stream, resident.arguments().chain([Argument::read(Role::Output, &output)])),
        Error::ReadOnly { tensor: "output" }
    );
    expect_error!(plan.run(&stream, []), Error::NullPointer { tensor: "value" });
    Ok(stream.synchronize()?)
}

fn no_memory() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    expect_error!(
        DeviceBuffer::<f32>::filled(&stream, 1 << 46, 0),
        Error::OutOfMemory { bytes: 0x1_0000_0000_0000 }
    );
    expect_error!(
        DeviceBuffer::<f32>::filled(&stream, usize::MAX, 0),
        Error::OutOfMemory { bytes: usize::MAX }
    );
    // The engine is as good as before.
    resident(&stream)?.run(&stream, &Plan::forward(&engine, &problem())?)?;
    Ok(stream.synchronize()?)
}

fn no_such_device() -> Outcome {
    expect_error!(Engine::new(4096), Error::NoDevice { ordinal: 4096, .. });
    Ok(())
}

fn refused_variants() -> Outcome {
    let engine = engine()?;
    let plan = |problem: &Problem, variant: &str, knobs: &[(&str, i64)]| {
        let knobs = knobs.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let options = PlanOptions { variant: Some(find(variant)?), knobs, ..Default::default() };
        Plan::new(&engine, problem, &options)
    };
    expect_error!(
        plan(&problem(), "fwd_nothing", &[]),
        Error::Problem(msdeform::Error::UnknownVariant { .. })
    );
    let many = problem().to_builder().levels([(2i64, 2i64); 20]).packed().points(1).build()?;
    expect_error!(
        plan(&many, "fwd_original", &[]),
        Error::Problem(msdeform::Error::Unsupported { variant: "fwd_original", .. })
    );
    expect_error!(
        plan(&problem(), "fwd_general", &[("VECTOR", 3)]),
        Error::Knob { variant: "fwd_general", .. }
    );
    let wide = problem().to_builder().dtype(DType::F64).sampling_dtype(DType::F64).build()?;
    let refused = Plan::forward(&engine, &wide);
    expect_error!(refused, Error::Problem(msdeform::Error::Unsupported { .. }));
    Ok(())
}

/// A stream that is recording in global mode refuses what cannot be recorded; here the driver refuses
/// a launch into a stream whose capture was broken.
fn refused_launch() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let mut resident = resident(&stream)?;
    let plan = Plan::forward(&engine, &problem())?;
    resident.run(&stream, &plan)?;
    let mut launched = Ok(());
    let captured = msdeform_cuda::Graph::capture(&stream, |stream| {
        // Breaks the capture; every launch after it is refused.
        drop(stream.synchronize());
        launched = resident.run(stream, &plan);
        Ok(())
    });
    ensure!(captured.is_err(), "a broken capture must not become a graph");
    let Err(error) = launched else { return Err("the launch was not refused".into()) };
    ensure!(matches!(error, Error::Launch { .. }), "{error:?}");
    let words = error.to_string();
    ensure!(words.contains(plan.variant().id) && words.contains("CUDA_ERROR"), "{words}");
    Ok(())
}

fn other_device() -> Outcome {
    let (first, second) = (engine()?, Engine::new(1)?);
    let streams = [Stream::new(first.context())?, Stream::new(second.context())?];
    let (good, foreign) = (resident(&streams[0])?, resident(&streams[1])?);
    let plan = Plan::forward(&first, &problem())?;
    // SAFETY: refused before the launch.
    let launch = |stream, pointers| unsafe { plan.launch(stream, &pointers) };
    expect_error!(
        launch(&streams[1], good.pointers()),
        Error::WrongDevice { what: "stream", expected: 0, found: 1 }
    );
    expect_error!(
        launch(&streams[0], foreign.pointers()),
        Error::WrongDevice { what: "value", expected: 0, found: 1 }
    );
    // SAFETY: the stream outlives the call.
    let borrowed = unsafe { Stream::borrow(first.context(), streams[1].raw_handle()) };
    expect_error!(borrowed, Error::WrongContext { device: 0 });
    Ok(())
}
