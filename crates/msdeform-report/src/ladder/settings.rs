//! Which settings of a rung's knobs are settings of their own.

use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::{Call, KnobChoices, Variant};
use msdeform_cuda_lab::registry;
use msdeform_lab::device::named::{id_in, knobs_in, name_with};
use msdeform_lab::workload::{self, Sizes};

use super::{DTYPE, LAYOUTS, WORKLOAD, forward};

/// The names of what is timed: every variant as it sets itself up, and every setting of a rung's knobs that differs
/// from that.
pub fn names() -> Vec<String> {
    let mut names = Vec::new();
    for variant in forward() {
        let id = variant.spec.id;
        names.push(id.to_owned());
        for knob in variant.knobs.iter().filter(|_| variant.spec.rung) {
            let settings = knob.values.iter().map(|&value| name_with(id, knob.name, value));
            names.extend(settings.filter(|name| own_name(name) == *name));
        }
    }
    names
}

/// A name without the knobs that the variant would set to the same value by itself.
///
/// Settings that differ in no knob then share a row of a table. The name of an unknown variant stays as it is.
pub(crate) fn own_name(name: &str) -> String {
    let id = id_in(name);
    let (Ok(variant), Ok(named)) = (registry::find(id), knobs_in(name)) else {
        return name.to_owned();
    };
    if named.is_empty() {
        return name.to_owned();
    }
    let defaults = defaults_of(variant);
    let is_default = |knob: &str, value: i64| defaults.contains(&(knob, value));
    let different = named.iter().filter(|(knob, value)| !is_default(knob, **value));
    different.fold(id.to_owned(), |name, (knob, &value)| name_with(&name, knob, value))
}

/// What a variant sets its knobs to on the ladder's workload and an H200, which the ladder is of.
fn defaults_of(variant: &Variant) -> Vec<(&'static str, i64)> {
    let problem = workload::find(WORKLOAD)
        .and_then(|workload| workload.problem(DTYPE, LAYOUTS[0], Sizes::default()).ok());
    let configured = problem.and_then(|problem| {
        let device = DeviceProps::h200();
        variant.configure(&Call::new(&problem, &device), &KnobChoices::default()).ok()
    });
    configured.map_or_else(Vec::new, |configuration| configuration.knobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_with_knobs_leaves_out_the_value_of_each_that_it_sets_itself() {
        let names = names();
        for variant in forward().filter(|variant| variant.spec.rung) {
            for knob in variant.knobs {
                let of_knob = format!("{}:{}=", variant.spec.id, knob.name);
                let timed = names.iter().filter(|name| name.starts_with(&of_knob)).count();
                assert_eq!(timed + 1, knob.values.len(), "{of_knob}");
            }
        }
        assert!(!names.contains(&"fwd_warp_spec_meta:PRODUCERS=2".to_owned()));
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn names_keep_what_differs_and_what_is_not_ours() {
        for (name, own) in [
            ("fwd_simple", "fwd_simple"),
            ("fwd_simple:WARPS=8", "fwd_simple"),
            ("fwd_async_pipeline:STAGES=2:THREADS=128", "fwd_async_pipeline:THREADS=128"),
            ("fwd_unheard_of:WARPS=8", "fwd_unheard_of:WARPS=8"),
            ("fwd_simple:WARPS", "fwd_simple:WARPS"),
        ] {
            assert_eq!(own_name(name), own);
        }
    }
}
