//! Every rung of the ladder where loops have tails: numbers of queries that no grid divides, few and many images,
//! one query, fewer items than blocks. With every value of every knob.
//!
//! A rung whose barriers or rings lose count does not fail a comparison, it stops: its waits are bounded and
//! trap, so that a hang is a failed test.

use libtest_mimic::Trial;
use msdeform::{DType, Direction, Problem, ValueLayout};
use msdeform_cuda::variants::{Call, KnobChoices, Variant};
use msdeform_cuda::{Plan, PlanOptions};
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::Case;

use crate::conformance::{choices, compare, runner};
use crate::{Outcome, ensure};

/// Images and queries.
const CALLS: [(usize, usize); 8] =
    [(1, 1), (48, 1), (1, 7), (4, 3), (4, 97), (1, 1009), (48, 67), (48, 133)];

const LAYOUTS: [ValueLayout; 2] = [ValueLayout::HeadMajor, ValueLayout::HeadMajorPadded];

/// Points per level: the seeds', and ones that fill no round.
const POINTS: [[usize; 4]; 2] = [[8, 8, 8, 8], [1, 5, 2, 7]];

pub fn trials() -> Vec<Trial> {
    let rungs = REGISTRY
        .iter()
        .copied()
        .filter(|variant| variant.spec.rung && variant.spec.direction == Direction::Forward);
    let trials = rungs.flat_map(|variant| {
        let id = variant.spec.id;
        let on = LAYOUTS.map(|layout| {
            Trial::test(format!("ladder::{id}::{layout}::tails"), move || tails(variant, layout))
        });
        let given = format!("ladder::{id}::runs_with_the_knobs_it_was_given");
        on.into_iter().chain([Trial::test(given, move || given_knobs(variant))])
    });
    trials.collect()
}

fn problem(
    (batch, queries): (usize, usize),
    points: [usize; 4],
    layout: ValueLayout,
) -> Result<Problem, msdeform::Error> {
    let problem = Problem::builder().batch(batch).heads(1).channels(32).queries(queries);
    let problem = problem.levels([(12, 20), (6, 10), (3, 5), (2, 3)]).points_per_level(points);
    problem.dtype(DType::F16).layout(layout).build()
}

/// A plan may do without tensor maps where the driver refuses them; on a GPU that has a copy engine that would be
/// a measurement of something else.
fn given_knobs(variant: &'static Variant) -> Outcome {
    let engine = runner()?.engine()?;
    let problem = problem((2, 9), POINTS[0], ValueLayout::HeadMajor)?;
    let call = Call::new(&problem, engine.context().props());
    for knobs in choices(variant) {
        let chosen = KnobChoices::new(variant, &knobs)?;
        let Ok(configuration) = variant.configure(&call, &chosen) else { continue };
        let options = PlanOptions { variant: Some(variant), knobs, ..Default::default() };
        let plan = Plan::new(&engine, &problem, &options)?;
        let (planned, found) = (&configuration.knobs[..], plan.knobs());
        ensure!(planned == found, "{planned:?} became {found:?}");
    }
    Ok(())
}

fn tails(variant: &'static Variant, layout: ValueLayout) -> Outcome {
    let mut compared = 0;
    for points in POINTS {
        for call in CALLS {
            let problem = problem(call, points, layout)?;
            for knobs in choices(variant) {
                let case = Case::varied(problem.clone(), Direction::Forward, 1);
                let case = case.by(variant.spec.id, knobs);
                compared += usize::from(compare(&case, Some(variant))?);
            }
        }
    }
    ensure!(compared > 0, "it refused every call");
    Ok(())
}
