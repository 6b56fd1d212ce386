//! Random problems on the GPU, and the poison around what they touch.

use std::time::Duration;

use libtest_mimic::Trial;
use msdeform::{DType, Direction, Problem, Role};
use msdeform_cuda::{DeviceBuffer, Plan, PlanOptions, PointerChecks, broken_guards};
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::Case;
use msdeform_lab::case::Values;
use msdeform_lab::runner::CudaRunner;
use msdeform_lab::soak::{Bounds, Limit, SoakOptions, soak};

use crate::resident::Resident;
use crate::{Outcome, engine_and_stream, ensure};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("random::problems_of_every_kind_are_within_the_contract", problems),
        Trial::test("random::a_write_behind_a_buffer_is_found", trespass),
    ]
}

/// A slice of what `msdeform soak` runs for as long as one likes.
fn problems() -> Outcome {
    let options = SoakOptions {
        bounds: Bounds::default(),
        seed: 20,
        limit: Limit::Problems(60),
        threads: std::thread::available_parallelism()?.get(),
        sizes: 12,
        hung_after: Duration::from_secs(20),
    };
    let report = soak(&CudaRunner::new(0, REGISTRY)?, &options, &mut |_, _| ());
    ensure!(report.is_clean(), "{:#?}, {:#?}", report.failures, report.hangs);
    Ok(())
}

/// An output that is 16 bytes shorter than the plan was told.
fn trespass() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let problem = Problem::builder().heads(2).channels(24).queries(23).points(4);
    let problem = problem.levels([(8, 8)]).dtype(DType::F32).build()?;
    // Zeros, of which no byte is poison.
    let mut case = Case::varied(problem.clone(), Direction::Forward, 1);
    case.numbers.values = Values::Zero;
    let inputs = case.inputs();
    let resident = Resident::<f32>::holding(&stream, case, inputs)?;
    let short = DeviceBuffer::<f32>::filled(&stream, problem.output_len() - 4, 0)?;
    let bytes = short.bytes();
    let options = PlanOptions { pointer_checks: PointerChecks::Never, ..Default::default() };
    let plan = Plan::new(&engine, &problem, &options)?;
    let pointers = resident.pointers().with(Role::Output, short.address());
    // SAFETY: what is written behind the output is its guard, which belongs to the same allocation.
    unsafe { plan.launch(&stream, &pointers) }?;
    stream.synchronize()?;
    drop(short);
    let (ours, others): (Vec<String>, Vec<String>) = broken_guards()
        .into_iter()
        .partition(|words| words.contains(&format!("a buffer of {bytes} bytes")));
    ensure!(others.is_empty(), "{others:?}");
    ensure!(ours.len() == 1 && ours[0].contains("0 bytes behind its end"), "{ours:?}");
    Ok(())
}
