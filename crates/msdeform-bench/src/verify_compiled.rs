//! Everything that may be compiled for known models, each on one problem against the `f64` reference.

use msdeform::ValueLayout;
use msdeform_cuda::Gradients;
use msdeform_devices::case::Label;
use msdeform_devices::device::{Device, DeviceError, Outputs};
use msdeform_devices::workload::{Points, Queries, ReferencePoints, References, Workload};
use msdeform_devices::{Draw, HostTensors, Locations};
use rayon::prelude::*;

use crate::models::Specialisation;
use crate::verify::{Oracle, Verification, run_twice};

/// The name of these problems in tables, where others have their workload's.
pub const MODELS: &str = "models";

/// Something that was compiled, and how its problem went.
#[derive(Clone, Debug)]
pub struct CompiledCheck {
    /// What was compiled.
    pub specialisation: Specialisation,
    /// As of any other problem.
    pub verification: Verification,
}

/// Runs what may be compiled on a device, of the variants with these ids; `done` hears of each that is
/// finished. Side by side: nearly all of the time goes into compiling.
pub fn verify_compiled(
    device: &dyn Device,
    mut wanted: Vec<Specialisation>,
    variants: &[&str],
    seed: u64,
    begin: impl FnOnce(usize),
    done: impl Fn(&Specialisation) + Sync,
) -> Vec<CompiledCheck> {
    wanted.retain(|wanted| variants.contains(&wanted.variant.spec().id));
    begin(wanted.len());
    let check = |specialisation: Specialisation| {
        let verification = verify_one(device, &specialisation, seed);
        done(&specialisation);
        CompiledCheck { specialisation, verification }
    };
    wanted.into_par_iter().map(check).collect()
}

fn verify_one(device: &dyn Device, specialisation: &Specialisation, seed: u64) -> Verification {
    let (spec, problem) = (specialisation.variant.spec(), &specialisation.problem);
    let label = Label {
        workload: MODELS.to_owned(),
        locations: Locations::Local.name().to_owned(),
        layout: ValueLayout::Interleaved.name().to_owned(),
        dtype: problem.dtype().name().to_owned(),
        direction: spec.direction.name().to_owned(),
        variant: spec.id.to_owned(),
        batch: problem.batch(),
        queries: problem.queries(),
    };
    let inputs = inputs(specialisation, seed);
    let ran = || -> Result<Outputs, DeviceError> {
        let backward = specialisation.backward;
        let mut prepared = device.prepare_call(spec, problem, backward, &inputs)?;
        run_twice(prepared.as_mut(), spec.id)
    };
    match ran() {
        Ok(outputs) => {
            let tensors = Oracle::new(problem, &inputs, &[spec]).check(&outputs, spec, problem);
            let is_whole = tensors.len() == written(specialisation);
            let pass = is_whole && tensors.iter().all(|check| check.pass);
            Verification { label, tensors, pass, error: None }
        }
        Err(error) => {
            let error = Some(format!("{error} ({})", specialisation.name()));
            Verification { label, tensors: Vec::new(), pass: false, error }
        }
    }
}

/// Tensors that the call writes.
fn written(Specialisation { variant, problem, backward, .. }: &Specialisation) -> usize {
    let asked = backward.map_or(Gradients::ALL, |backward| backward.gradients);
    let written = problem.operator().written(variant.spec().direction);
    written.filter(|role| asked.includes(*role)).count()
}

/// Samples around points anywhere in the image, as those of a decoder lie: some of them outside.
fn inputs(specialisation: &Specialisation, seed: u64) -> HostTensors {
    let problem = &specialisation.problem;
    let levels = problem.levels().iter().map(|level| (level.height as u32, level.width as u32));
    let points = (0..problem.levels().len()).map(|level| problem.level_samples(level).len());
    let workload = Workload {
        name: MODELS.to_owned(),
        why: String::new(),
        tags: Vec::new(),
        batch: problem.batch(),
        batch_cpu: None,
        heads: problem.heads(),
        channels: problem.channels(),
        levels: levels.collect(),
        points: Points::PerLevel(points.collect()),
        queries: Queries::Count(problem.queries()),
        reference_points: ReferencePoints::Uniform,
        references: References::default(),
        locations: vec![Locations::Local],
        layouts: vec![ValueLayout::Interleaved],
    };
    let draw = Draw { locations: Locations::Local, seed, total_queries: problem.queries() };
    HostTensors::generate(&workload, problem, &draw)
}

#[cfg(test)]
mod tests {
    use msdeform_devices::STANDARD_SEED;

    use super::*;
    use crate::fixtures::{TestDevice, some_specialisations};

    const ALL: [&str; 5] =
        ["fwd_general", "fwd_split_gather", "fwd_tile_gather", "bwd_level_sort", "bwd_tile_sort"];

    #[test]
    fn everything_compiled_is_compared_in_what_it_was_asked_for() {
        let mut count = 0;
        let begin = |wanted| count = wanted;
        let checks = verify_compiled(
            &TestDevice,
            some_specialisations(),
            &ALL,
            STANDARD_SEED,
            begin,
            |_| (),
        );
        let passed: Vec<bool> = checks.iter().map(|check| check.verification.pass).collect();
        assert_eq!((count, passed), (3, vec![true, false, true]));
        let tensors = |check: &CompiledCheck| {
            check.verification.tensors.iter().map(|t| t.tensor.clone()).collect::<Vec<_>>()
        };
        assert_eq!(tensors(&checks[0]), ["output"]);
        assert_eq!(tensors(&checks[2]), ["grad_locations", "grad_weights"]);
    }

    #[test]
    fn only_the_variants_that_are_wanted_run() {
        let checks = verify_compiled(
            &TestDevice,
            some_specialisations(),
            &[],
            STANDARD_SEED,
            |_| (),
            |_| (),
        );
        assert!(checks.is_empty());
    }
}
