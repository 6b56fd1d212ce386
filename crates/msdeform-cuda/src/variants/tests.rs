use std::collections::{BTreeMap, BTreeSet};

use msdeform::{BackwardCall, DType, Direction, Gradients, ProblemBuilder, Role, ValueLayout};

use super::*;
use crate::driver::{DeviceProps, LaunchGeometry};
use crate::registry::REGISTRY;

/// The model that kernels are chosen by.
pub(crate) fn deformable_detr(queries: usize) -> ProblemBuilder {
    let problem = Problem::builder().batch(2).heads(8).channels(32).points(4).dtype(DType::F16);
    problem.queries(queries).levels([(100, 167), (50, 84), (25, 42), (13, 21)])
}

/// What a variant makes of a problem on an H200, or why it refuses; a backward call may be changed.
pub(super) fn configured(
    variant: &Variant,
    problem: ProblemBuilder,
    change: impl Fn(BackwardCall) -> BackwardCall,
) -> Result<Configuration, String> {
    let (problem, device) = (problem.build().unwrap(), DeviceProps::h200());
    let mut call = Call::in_direction(variant.spec.direction, &problem, &device);
    call.backward = call.backward.map(change);
    (variant.supports)(&call)?;
    variant.configure(&call, &KnobChoices::default())
}

fn problem(variant: &Variant, batch: usize, queries: usize, size: usize) -> Problem {
    let dtypes = variant.spec.dtypes;
    let dtype = if dtypes.contains(&DType::F16) { DType::F16 } else { dtypes[0] };
    let levels = [(size as i64, size as i64 + 3), (size as i64 / 2, size as i64 / 2)];
    let problem = deformable_detr(queries).batch(batch).levels(levels).dtype(dtype);
    problem.layout(variant.spec.layouts[0]).build().unwrap()
}

/// The kernels that are compiled for a model at any batch and number of queries, by step.
fn compiled_for(direction: Direction, dtype: DType) -> BTreeMap<String, BTreeSet<Vec<String>>> {
    let device = DeviceProps::h200();
    let mut units: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
    // Miri, thousands of times slower, takes a few of them.
    let step: usize = if cfg!(miri) { 399 } else { 1 };
    for batch in (1..=64).step_by(step.div_ceil(20)) {
        for queries in (1..=2000).step_by(step) {
            let problem = deformable_detr(queries).batch(batch).dtype(dtype).build().unwrap();
            let call = Call::in_direction(direction, &problem, &device);
            let variant = crate::dispatch::builtin(&call).unwrap();
            let configured = variant.configure(&call, &KnobChoices::default()).unwrap();
            for unit in configured.units(variant, &call) {
                let entry = crate::pipeline::entry_name(variant.spec.id, unit.step);
                units.entry(entry).or_default().insert(unit.defines);
            }
        }
    }
    units
}

/// What each number stands for: a choice between variants, between few and many samples, or rows. More would stop a
/// training whose images have other sizes with every batch.
#[test]
#[cfg_attr(miri, ignore = "asks every variant thousands of times")]
fn what_is_compiled_for_a_model_is_bounded() {
    for dtype in DType::FAST {
        for direction in Direction::ALL {
            let most = match direction {
                Direction::Forward => 2,
                Direction::Backward => 4,
            };
            let units = compiled_for(direction, dtype);
            for (entry, found) in &units {
                assert!(found.len() <= most, "{dtype} {entry}: {found:#?}");
            }
            let all: usize = units.values().map(BTreeSet::len).sum();
            assert!(all <= 24, "{dtype} {direction}: {all} kernels");
        }
    }
}

/// Nothing that an encoder gets depends on the image.
#[test]
fn image_sizes_never_compile_again() {
    let device = DeviceProps::h200();
    for variant in REGISTRY {
        let units = |problem: &Problem| {
            let call = Call::in_direction(variant.spec.direction, problem, &device);
            variant.check(&call).ok()?;
            let configuration = variant.configure(&call, &KnobChoices::default()).ok()?;
            Some(configuration.units(variant, &call))
        };
        let large = units(&problem(variant, 2, 4096, 64));
        assert!(large.is_some(), "{variant:?} refuses an ordinary problem");
        assert_eq!(large, units(&problem(variant, 2, 5000, 72)), "{variant:?}");
        assert_eq!(large, units(&problem(variant, 3, 4096, 64)), "{variant:?}");
    }
}

#[test]
fn a_fixed_configuration_names_everything_stable() {
    let problem = deformable_detr(9).levels([(4, 4), (2, 2)]).points_per_level([3, 5]);
    let problem = problem.layout(ValueLayout::HeadMajor).dtype(DType::Bf16);
    let problem = problem.sampling_dtype(DType::F32).build().unwrap();
    let configuration = Configuration {
        specialise: Specialise::ModelAndHeads,
        knobs: vec![("VECTOR", 4), ("TILE", 16)],
        pipeline: LaunchGeometry::linear(1, 32).into(),
        value_alignment: 16,
        sampling_alignment: 4,
        ..Configuration::default()
    };
    let device = DeviceProps::h200();
    let mut call = Call::new(&problem, &device);
    assert_eq!(
        configuration.defines(&fwd_general::FWD_GENERAL, &call).join(" "),
        "-DMSDA_VALUE_DTYPE=2 -DMSDA_SAMPLING_DTYPE=0 -DMSDA_LEVELS=2 -DMSDA_CHANNELS=32 \
         -DMSDA_SAMPLES=8 -DMSDA_POINT_OFFSETS=0,3,8 -DMSDA_LAYOUT=1 -DMSDA_HEADS=8 \
         -DMSDA_VECTOR=4",
        "and no TILE, which the kernel does not mention"
    );
    let gradients = Gradients { locations: false, ..Gradients::ALL };
    call.backward = Some(BackwardCall { gradients, ..BackwardCall::new(&problem) });
    let of = |variant: &Variant| configuration.defines(variant, &call).join(" ");
    let defines = of(&bwd_original::BWD_ORIGINAL);
    assert!(defines.contains("-DMSDA_HEADS=8 -DMSDA_GRADIENTS=5"), "{defines}");
    assert!(!of(&fwd_general::FWD_GENERAL).contains("GRADIENTS"), "a forward has none");
}

#[test]
fn an_output_in_another_format_is_computed_by_who_takes_it() {
    let device = DeviceProps::h200();
    for variant in REGISTRY.iter().filter(|variant| variant.spec.dtypes.contains(&DType::F16)) {
        let problem = problem(variant, 1, 16, 8).to_builder().dtype(DType::F16);
        let problem = problem.output_dtype(DType::F32).build().unwrap();
        let call = Call::in_direction(variant.spec.direction, &problem, &device);
        match variant.check(&call) {
            Ok(()) => assert!(variant.takes_other_outputs, "{variant:?}"),
            Err(error) => {
                assert!(!variant.takes_other_outputs, "{variant:?}: {error}");
                let reason = "the output is f32 and values are f16";
                assert!(error.to_string().contains(reason), "{variant:?}: {error}");
            }
        }
        let chosen = crate::dispatch::builtin(&call).unwrap();
        assert!(chosen.takes_other_outputs, "{chosen:?}");
        let configuration = chosen.configure(&call, &KnobChoices::default()).unwrap();
        let defines = configuration.defines(chosen, &call).join(" ");
        assert!(defines.contains("-DMSDA_VALUE_DTYPE=1"), "{defines}");
        assert!(defines.contains("-DMSDA_OUTPUT_DTYPE=0"), "{defines}");
        let alignment = |role: Role| configuration.alignment(role.storage());
        assert_eq!(alignment(Role::Output), 2 * alignment(Role::Value), "{chosen:?}");
    }
}

#[test]
fn a_variant_refuses_the_other_direction_and_a_promise_it_cannot_keep() {
    let device = DeviceProps::h200();
    for variant in REGISTRY {
        let problem = problem(variant, 1, 16, 8);
        for direction in Direction::ALL {
            let mut call = Call::in_direction(direction, &problem, &device);
            let fits = direction == variant.spec.direction;
            assert_eq!(variant.check(&call).is_ok(), fits, "{variant:?} {direction}");
            if let Some(backward) = &mut call.backward {
                backward.mode = Mode::Deterministic;
                let keeps = fits && variant.is_deterministic;
                assert_eq!(variant.check(&call).is_ok(), keeps, "{variant:?} deterministic");
            }
        }
    }
}

#[test]
fn knobs_are_checked_by_name_and_value() {
    let general: &Variant = &fwd_general::FWD_GENERAL;
    let choose = |name: &str, value| KnobChoices::new(general, &[(name.to_owned(), value)]);
    assert_eq!(choose("VECTOR", 4).unwrap().get("VECTOR"), Some(4));
    for (name, value) in [("VECTOR", 3), ("SPEED", 4)] {
        let error = choose(name, value).unwrap_err().to_string();
        assert!(error.contains("fwd_general") && error.contains("VECTOR in"), "{error}");
    }
}
