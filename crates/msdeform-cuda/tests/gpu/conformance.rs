//! Every variant against the f64 reference: the named settings of `msdeform-lab` in every format, a test for each
//! layout.

use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Direction, Problem, ValueLayout};
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::Case;
use msdeform_lab::conformance::{Backend, FORMATS, Setting, check, settings};
use msdeform_lab::device::DeviceError;
use msdeform_lab::runner::{CudaRules, CudaRunner};

use crate::Outcome;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for &variant in REGISTRY {
        let (id, direction) = (variant.spec.id, variant.spec.direction);
        for layout in ValueLayout::ALL {
            for setting in settings(Backend::Gpu, direction) {
                let name = format!("{direction}::{id}::{layout}::{}", setting.name());
                let body = move || in_every_format(direction, Some(variant), setting, layout);
                trials.push(Trial::test(name, body));
            }
        }
        let name = format!("{direction}::{id}::every_knob");
        trials.push(Trial::test(name, move || every_knob(variant)));
    }
    for direction in Direction::ALL {
        let name = format!("{direction}::the_dispatcher_matches_the_reference");
        trials.push(Trial::test(name, move || {
            let mut settings = settings(Backend::Gpu, direction).into_iter();
            let layout = ValueLayout::Interleaved;
            settings.try_for_each(|setting| in_every_format(direction, None, setting, layout))
        }));
    }
    trials
}

/// One runner for the whole matrix, or every test would compile again.
pub fn runner() -> Result<&'static CudaRunner, Failed> {
    static RUNNER: OnceLock<CudaRunner> = OnceLock::new();
    if let Some(runner) = RUNNER.get() {
        return Ok(runner);
    }
    let opened = CudaRunner::new(0, REGISTRY)?;
    Ok(RUNNER.get_or_init(|| opened))
}

/// Whether a case was computed, within the bound of the variant that it names; what that refuses, it must refuse by name.
pub fn compare(case: &Case, variant: Option<&Variant>) -> Result<bool, Failed> {
    let bound = |dtype: DType| {
        variant.map_or(dtype.rel_l2_bound(), |variant| variant.spec.rel_l2_bound(dtype))
    };
    match (check(runner()?, case, &bound), variant) {
        (Ok(()), _) => Ok(true),
        (Err(DeviceError::Refused { reason }), Some(variant))
            if reason.contains(variant.spec.id) =>
        {
            Ok(false)
        }
        (Err(error), _) => Err(format!("{case}: {error}").into()),
    }
}

/// Compares one variant, or the dispatcher's choice if `variant` is `None`, in every combination of dtypes.
fn in_every_format(
    direction: Direction,
    variant: Option<&Variant>,
    setting: Setting,
    layout: ValueLayout,
) -> Outcome {
    let rules = CudaRules::new(runner()?.context().props().clone(), REGISTRY);
    for formats in FORMATS {
        let mut case = setting.case(direction, formats, layout)?;
        if let Some(variant) = variant {
            case = case.by(variant.spec.id, Vec::new());
        }
        if setting.scene.least_aligned {
            // A refusal is heard below.
            if let Ok(Some((_, configuration))) = rules.configure(&case) {
                case = case.least_aligned(&configuration);
            }
        }
        compare(&case, variant)?;
    }
    Ok(())
}

/// Every value of every knob that the variant takes for an ordinary problem.
fn every_knob(variant: &'static Variant) -> Outcome {
    let problem = Problem::builder().batch(2).heads(8).channels(32).queries(45).points(4);
    let problem = problem.levels([(12, 20), (6, 10)]).dtype(DType::F16).build()?;
    let plain = Case::varied(problem, variant.spec.direction, 1);
    for knobs in choices(variant) {
        compare(&plain.clone().by(variant.spec.id, knobs), Some(variant))?;
    }
    Ok(())
}

/// The variant's own choice, and every value of every knob.
pub fn choices(variant: &Variant) -> Vec<Vec<(String, i64)>> {
    let knobs = variant.knobs.iter();
    let set = knobs.flat_map(|knob| {
        knob.values.iter().map(|&value| vec![(knob.name.to_owned(), value)]).collect::<Vec<_>>()
    });
    std::iter::once(Vec::new()).chain(set).collect()
}
