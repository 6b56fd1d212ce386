//! Samples that all fall on the same pixels must not make the backward pass collapse.

use half::f16;
use libtest_mimic::{Failed, Trial};
use msdeform::{Direction, Element, Mode, Problem, ProblemBuilder, Role};
use msdeform_cuda::{BackwardOptions, Event, Plan, PlanOptions};
use msdeform_lab::case::Samples;
use msdeform_lab::{Case, HostTensors};

use crate::resident::Resident;
use crate::{Outcome, ensure, shared_engine};

/// The bound that users are promised. Measured ratios are 1 to 3.5, so the noise of a shared GPU does not reach it.
const MOST: f64 = 5.0;
const RUNS: usize = 15;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for mode in Mode::ALL {
        // 900, as DINO has them, give the longest lists that are not cut.
        for (name, queries) in [("few", 300), ("nine_hundred", 900), ("many", 4000)] {
            let body = move || in_two_formats(problem(queries), mode);
            trials.push(Trial::test(format!("contention::{name}_queries_{mode}"), body));
        }
    }
    trials
}

fn problem(queries: usize) -> ProblemBuilder {
    let levels = [(100, 167), (50, 84), (25, 42), (13, 21)];
    Problem::builder().heads(8).channels(32).queries(queries).levels(levels).points(4)
}

fn in_two_formats(problem: ProblemBuilder, mode: Mode) -> Outcome {
    at_most_five_times::<f16>(problem.clone(), mode)?;
    at_most_five_times::<f32>(problem, mode)
}

/// What the dispatcher chooses, on spread-out samples and on samples between the same four pixels.
fn at_most_five_times<V: Element>(problem: ProblemBuilder, mode: Mode) -> Outcome {
    let problem = problem.dtype(V::DTYPE).build()?;
    let mut case = Case::varied(problem.clone(), Direction::Backward, 7);
    case.mode = mode;
    case.numbers.samples = Samples::Around;
    let mut inputs = case.inputs();
    let spread = median_us::<V>(&case, inputs.clone())?;
    // Between four pixels of four tiles of the finest level: four lists with all samples in them.
    inputs.set(Role::Locations, &[0.40625, 0.4].repeat(problem.weights_len()));
    let crowded = median_us::<V>(&case, inputs)?;
    // NaN is not within the bound.
    let within = crowded <= MOST * spread;
    ensure!(within, "{problem}: {crowded:.1} us on one pixel, {spread:.1} us spread out");
    Ok(())
}

fn median_us<V: Element>(case: &Case, inputs: HostTensors) -> Result<f64, Failed> {
    let (engine, stream) = shared_engine()?;
    let options = PlanOptions::backward(BackwardOptions { mode: case.mode, ..Default::default() });
    let plan = Plan::new(&engine, &case.problem, &options)?;
    let mut resident = Resident::<V>::holding(&stream, case.clone(), inputs)?;
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let (start, end) = (Event::new(engine.context())?, Event::new(engine.context())?);
        start.record(&stream)?;
        resident.run(&stream, &plan)?;
        end.record(&stream)?;
        end.synchronize()?;
        times.push(end.elapsed_us_since(&start)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}
