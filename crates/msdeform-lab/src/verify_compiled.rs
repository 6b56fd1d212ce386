//! Everything that may be compiled for known models, each on one problem against the `f64` reference.

use std::collections::HashMap;

use crate::device::{Device, DeviceError};
use crate::oracle::Oracle;
use crate::workload::{Label, ReferencePoints, name_of};
use crate::{Draw, HostTensors, Locations};
use msdeform::{Gradients, ValueLayout};
use rayon::prelude::*;

use crate::models::Specialisation;
use crate::verify::Verification;

/// The name of these problems in tables, where others have their workload's.
pub(crate) const MODELS: &str = "models";

#[derive(Clone, Debug)]
pub struct CompiledCheck {
    pub specialisation: Specialisation,
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
    wanted.retain(|wanted| variants.contains(&wanted.variant.spec.id));
    begin(wanted.len());
    let check = |kernels: Vec<Specialisation>| {
        let verification = kernels.first().map(|first| verify_one(device, first, seed));
        let checks = kernels.into_iter().zip(verification.into_iter().cycle());
        let check = |(specialisation, mut verification): (Specialisation, Verification)| {
            done(&specialisation);
            if let Some(error) = &mut verification.error {
                *error += &format!(" ({})", specialisation.name());
            }
            CompiledCheck { specialisation, verification }
        };
        checks.map(check).collect::<Vec<_>>()
    };
    by_call(wanted).into_par_iter().flat_map_iter(check).collect()
}

/// Kernels of one call together: it runs them all, and each is as right as its results.
pub fn by_call(wanted: Vec<Specialisation>) -> Vec<Vec<Specialisation>> {
    let mut calls: Vec<Vec<Specialisation>> = Vec::new();
    let mut known = HashMap::new();
    for specialisation in wanted {
        let Specialisation { variant, problem, backward, .. } = &specialisation;
        let backward = backward.map(|call| (call.gradients, call.mode, call.grad_output));
        let call = known.entry((variant.spec.id, problem.clone(), backward)).or_insert_with(|| {
            calls.push(Vec::new());
            calls.len() - 1
        });
        calls[*call].push(specialisation);
    }
    calls
}

fn verify_one(device: &dyn Device, specialisation: &Specialisation, seed: u64) -> Verification {
    let (spec, problem) = (specialisation.variant.spec, &specialisation.problem);
    let label = Label {
        workload: name_of(MODELS, problem.operator()),
        locations: Locations::Local.name().to_owned(),
        layout: ValueLayout::Interleaved.name().to_owned(),
        dtype: problem.dtype().name().to_owned(),
        direction: spec.direction.name().to_owned(),
        variant: spec.id.to_owned(),
        batch: problem.batch(),
        queries: problem.queries(),
    };
    let inputs = inputs(specialisation, seed);
    let ran = || -> Result<HostTensors, DeviceError> {
        let backward = specialisation.backward;
        device.prepare_call(spec, problem, backward, &inputs)?.run_twice(spec.id)
    };
    let oracle = || Oracle::new(problem, &inputs, &[spec]).allowing_overflow();
    let checks = ran().map(|outputs| oracle().check(&outputs, spec, problem));
    let mut verification = Verification::of(label, checks);
    verification.pass &= verification.tensors.len() == written(specialisation);
    verification
}

/// Tensors that the call writes.
fn written(Specialisation { variant, problem, backward, .. }: &Specialisation) -> usize {
    let wanted = backward.map_or(Gradients::ALL, |backward| backward.gradients);
    let written = problem.operator().written(variant.spec.direction);
    written.filter(|role| wanted.includes(*role)).count()
}

/// Samples around points anywhere in the image, as those of a decoder lie: some of them outside.
fn inputs(specialisation: &Specialisation, seed: u64) -> HostTensors {
    let problem = &specialisation.problem;
    let (locations, reference_points) = (Locations::Local, ReferencePoints::Uniform);
    let draw = Draw { locations, reference_points, seed, total_queries: problem.queries() };
    HostTensors::generate(problem, &draw)
}

#[cfg(test)]
mod tests {
    use crate::device::{CpuDevice, DeviceOptions};
    use crate::{STANDARD_SEED, models};
    use msdeform::{ATTENTION, FROM_OFFSETS};
    use msdeform_cuda::DeviceProps;

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
    fn kernels_of_one_call_are_run_by_it_together_and_none_is_lost() {
        let all = models::specialisations(&DeviceProps::h200(), &ATTENTION);
        let calls = by_call(all.clone());
        assert!(5 * calls.len() < 4 * all.len(), "{} calls of {}", calls.len(), all.len());
        for kernels in &calls {
            for kernel in kernels {
                assert_eq!(kernel.problem, kernels[0].problem);
                assert_eq!(kernel.backward, kernels[0].backward);
                assert_eq!(kernel.variant.spec.id, kernels[0].variant.spec.id);
            }
        }
        let names = |kernels: &mut dyn Iterator<Item = &Specialisation>| {
            let mut names: Vec<_> = kernels.map(|k| (k.variant.spec.id, k.name())).collect();
            names.sort();
            names
        };
        assert_eq!(names(&mut calls.iter().flatten()), names(&mut all.iter()));
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

    /// The inputs and the bound of every rule are such that right results pass.
    #[test]
    fn fused_problems_of_every_rule_pass_on_the_cpu() {
        let options = DeviceOptions { ignore_tuning: true, ..DeviceOptions::default() };
        let cpu = CpuDevice::new(options.with_all_gradients()).unwrap();
        let mut all = models::specialisations(&DeviceProps::h200(), &FROM_OFFSETS);
        all.retain(|found| !found.problem.levels().iter().any(|level| level.height < 2));
        all.sort_by_key(|found| found.problem.weights_len());
        let mut met = std::collections::HashSet::new();
        for found in all {
            let (problem, direction) = (&found.problem, found.variant.spec.direction);
            let formats = (problem.dtype(), problem.reference_dtype());
            if !met.insert((problem.offsets().copied(), formats, direction)) {
                continue;
            }
            let tensors = inputs(&found, STANDARD_SEED);
            let spec = cpu.builtin(problem, direction).unwrap();
            let mut prepared = cpu.prepare(&[spec], problem, &tensors).unwrap();
            let outputs = prepared.run_twice(spec.id).unwrap();
            let checks = Oracle::new(problem, &tensors, &[spec]).check(&outputs, spec, problem);
            for check in checks {
                assert!(check.pass, "{problem}: {check:?}");
            }
        }
        assert!(met.len() > 30, "{}", met.len());
    }
}
