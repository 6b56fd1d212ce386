//! Tuning files: which variant is fastest for a call on one machine, as `msdeform tune` measured it there.
//!
//! A tuning file belongs to one device and one set of kernels. Dispatch asks for the entry nearest to a call before it reads
//! its own tables. It skips an entry that does not fit the call, as it skips a row of the tables.
//! A tuning file never fails a call: a file that is stale, foreign or broken is ignored, and [`Tuning::ignored`] gives the reason.

mod class;
mod file;

use msdeform::{Gradients, Mode};

#[doc(hidden)]
pub use class::CallClass;
#[doc(hidden)]
pub use file::{Contender, Entry, Origin, TUNING_VARIABLE, TuningFile, slug};
pub use file::{Source, Tuning};

use crate::driver::DeviceProps;
use crate::jit::COMMON_OPTIONS;
use crate::kernel_text::{KernelText, Selection};
use crate::registry::{self, REGISTRY};
use crate::variants::{Call, KnobChoices, Variant};

/// A variant with its knobs.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ChosenVariant {
    /// The variant.
    pub variant: &'static Variant,
    /// The knobs that are set; the variant chooses the others.
    pub knobs: KnobChoices,
}

/// The owner that a tuning file for a GPU and the kernels of this crate names.
#[doc(hidden)]
pub fn origin(device: &DeviceProps) -> Origin {
    let (major, minor) = device.compute_capability;
    Origin {
        device: device.name.clone(),
        compute_capability: Some(format!("{major}.{minor}")),
        multiprocessors: Some(device.multiprocessors),
        msdeform: env!("CARGO_PKG_VERSION").to_owned(),
        fingerprint: fingerprint(),
    }
}

/// Stands for everything that there is to choose from: sources, options and knobs of every variant. A choice may be
/// wrong as soon as another variant has become faster, so a change to any of them counts.
fn fingerprint() -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    COMMON_OPTIONS.iter().for_each(|option| part(option));
    for variant in REGISTRY {
        part(variant.spec.id);
        KernelText::of(variant, &Selection::Everything).code().for_each(&mut part);
        for knob in variant.knobs {
            part(&format!("{} {:?}", knob.name, knob.values));
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Reads the tuning file of a GPU: the given one, or the one that the environment names.
pub(crate) fn load(device: &DeviceProps, source: Option<&Source>) -> Tuning {
    let of_environment = || Source::of_environment(&device.name);
    let source = source.cloned().unwrap_or_else(of_environment);
    // The fingerprint hashes every source: not for the many who have no file.
    match source.path() {
        Some(path) if path.exists() || matches!(source, Source::Named(_)) => {
            Tuning::load(&source, &origin(device))
        }
        path => Tuning::None { path: path.map(std::path::Path::to_owned) },
    }
}

/// The class of a call; none for a part of the gradients, which was not measured.
#[doc(hidden)]
pub fn class(call: &Call<'_>) -> Option<CallClass> {
    let mode = match call.backward {
        None => Mode::Fast,
        Some(backward) if backward.gradients == Gradients::ALL => backward.mode,
        Some(_) => return None,
    };
    Some(CallClass::of(call.problem, call.direction(), mode, None))
}

/// The measured choice for a call, if there is one and the call fits it: what a plan uses.
#[doc(hidden)]
pub fn choose(tuning: &Tuning, call: &Call<'_>) -> Option<ChosenVariant> {
    if call.is_empty() {
        return None;
    }
    let choice = of_entry(tuning.find(&class(call)?)?)?;
    choice.variant.check(call).ok()?;
    choice.variant.configure(call, &choice.knobs).ok()?;
    Some(choice)
}

fn of_entry(entry: &Entry) -> Option<ChosenVariant> {
    let variant = registry::find(&entry.best.variant).ok()?;
    let knobs: Vec<(String, i64)> =
        entry.best.knobs.iter().map(|(name, value)| (name.clone(), *value)).collect();
    Some(ChosenVariant { variant, knobs: KnobChoices::new(variant, &knobs).ok()? })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use msdeform::{BackwardCall, Problem};

    use super::*;
    use crate::dispatch;
    use crate::variants::tests::deformable_detr;

    fn problem(queries: usize, channels: usize) -> Problem {
        deformable_detr(queries).channels(channels).build().unwrap()
    }

    fn tuning(call: &Call<'_>, variant: &str, knobs: &[(&str, i64)]) -> Tuning {
        let best = Contender {
            variant: variant.to_owned(),
            knobs: knobs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            time_us: 1.0,
        };
        let builtin = Contender { knobs: BTreeMap::new(), time_us: 2.0, ..best.clone() };
        let class = class(call).unwrap();
        let entries = vec![Entry { class, best, builtin, measured_on: "test".into() }];
        Tuning::Loaded { path: "tuning.json".into(), entries }
    }

    #[test]
    fn a_measured_choice_goes_before_the_tables_for_calls_like_the_measured_one() {
        let device = DeviceProps::h200();
        let (measured, near, far) = (problem(300, 32), problem(330, 32), problem(3000, 32));
        let call = Call::new(&measured, &device);
        assert_ne!(dispatch::builtin(&call).unwrap().spec.id, "fwd_tile_gather");
        let tuning = tuning(&call, "fwd_tile_gather", &[("WARPS", 4)]);
        for problem in [&measured, &near] {
            let choice = choose(&tuning, &Call::new(problem, &device)).unwrap();
            assert_eq!(choice.variant.spec.id, "fwd_tile_gather");
            assert_eq!(choice.knobs.chosen(), [("WARPS".to_owned(), 4)]);
        }
        assert!(choose(&tuning, &Call::new(&far, &device)).is_none());
        assert!(choose(&Tuning::OFF, &call).is_none());
    }

    #[test]
    fn what_does_not_fit_falls_through() {
        let device = DeviceProps::h200();
        let ordinary = problem(300, 32);
        let call = Call::new(&ordinary, &device);
        for (variant, knobs) in [
            ("fwd_forgotten", &[][..]),
            ("bwd_tile_sort", &[]),
            ("fwd_tile_gather", &[("WARPS", 7)]),
            ("fwd_tile_gather", &[("NO_KNOB", 1)]),
            ("fwd_tile_gather", &[("WARPS", 32), ("MIN_BLOCKS", 16)]),
        ] {
            assert!(choose(&tuning(&call, variant, knobs), &call).is_none(), "{variant} {knobs:?}");
        }
        // A variant that refuses the channels of the call.
        let odd = problem(300, 33);
        let call = Call::new(&odd, &device);
        assert!(choose(&tuning(&call, "fwd_tile_gather", &[]), &call).is_none());
    }

    #[test]
    fn modes_are_apart_and_a_part_of_the_gradients_was_not_measured() {
        let device = DeviceProps::h200();
        let problem = problem(300, 32);
        let fast =
            Call { backward: Some(BackwardCall::new(&problem)), ..Call::new(&problem, &device) };
        let tuning = tuning(&fast, "bwd_original", &[]);
        assert!(choose(&tuning, &fast).is_some());
        let with = |change: fn(&mut BackwardCall)| {
            let mut backward = BackwardCall::new(&problem);
            change(&mut backward);
            Call { backward: Some(backward), ..fast }
        };
        assert!(choose(&tuning, &with(|call| call.mode = Mode::Deterministic)).is_none());
        assert!(choose(&tuning, &with(|call| call.gradients.value = false)).is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "hashes all sources, which takes Miri a quarter of an hour")]
    fn a_file_for_this_gpu_is_read_and_another_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning.json");
        let device = DeviceProps::h200();
        TuningFile::new(origin(&device)).write(&path).unwrap();
        let source = Source::Named(path);
        assert!(matches!(load(&device, Some(&source)), Tuning::Loaded { .. }));
        let smaller = DeviceProps { multiprocessors: 114, ..device };
        let reason = load(&smaller, Some(&source)).ignored().unwrap();
        assert!(reason.contains("114 multiprocessors"), "{reason}");
        assert_eq!(load(&smaller, Some(&Source::Off)), Tuning::OFF);
    }
}
