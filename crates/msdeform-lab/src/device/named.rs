//! Knobs in the name of a variant: `fwd_persistent:SHARED=96` is `fwd_persistent` with that knob set. Tables and
//! records then tell settings apart as they tell variants apart.

use std::collections::BTreeMap;

use msdeform::VariantSpec;
use msdeform_cuda::registry::find_among;
use msdeform_cuda::variants::Variant;

/// Separates the id from the first knob, and one knob from the next.
pub const KNOB_SEPARATOR: char = ':';

pub fn id_in(name: &str) -> &str {
    name.split(KNOB_SEPARATOR).next().unwrap_or(name)
}

pub fn knobs_in(name: &str) -> Result<BTreeMap<String, i64>, String> {
    let knob = |text: &str| {
        let (knob, value) = text.split_once('=')?;
        Some((knob.to_owned(), value.parse().ok()?))
    };
    name.split(KNOB_SEPARATOR)
        .skip(1)
        .map(|text| knob(text).ok_or_else(|| format!("`{text}` is not a knob; write NAME=NUMBER")))
        .collect()
}

pub fn name_with(id: &str, knob: &str, value: i64) -> String {
    format!("{id}{KNOB_SEPARATOR}{knob}={value}")
}

/// The names of a GPU variant with a knob at each of its values; `None` if it has no such knob.
pub fn names_of_sweep(
    variants: &[&'static Variant],
    name: &str,
    knob: &str,
) -> Option<Vec<String>> {
    let variant = find_among(variants, id_in(name)).ok()?;
    let knob = variant.knobs.iter().find(|found| found.name.eq_ignore_ascii_case(knob))?;
    Some(knob.values.iter().map(|&value| name_with(name, knob.name, value)).collect())
}

/// A variant under a name with knobs. It lives as long as the program, as every other variant does; the
/// caller names only a few.
pub fn named(spec: &VariantSpec, name: &str) -> &'static VariantSpec {
    let id = Box::leak(name.to_owned().into_boxed_str());
    Box::leak(Box::new(VariantSpec { id, ..spec.clone() }))
}

#[cfg(test)]
mod tests {
    use msdeform_cuda_lab::REGISTRY;

    use super::*;

    #[test]
    fn a_name_holds_an_id_and_its_knobs() {
        let name = name_with("fwd_x", "STAGES", 3);
        assert_eq!((id_in(&name), id_in("fwd_x")), ("fwd_x", "fwd_x"));
        let both = knobs_in("fwd_x:STAGES=3:WARPS=8").unwrap();
        assert_eq!(both, BTreeMap::from([("STAGES".to_owned(), 3), ("WARPS".to_owned(), 8)]));
        assert!(knobs_in("fwd_x").unwrap().is_empty());
        let sweep = names_of_sweep(REGISTRY, "fwd_simple", "warps").unwrap();
        assert_eq!(sweep, ["fwd_simple:WARPS=4", "fwd_simple:WARPS=8"]);
        assert!(names_of_sweep(REGISTRY, "fwd_simple", "SPEED").is_none());
        for wrong in ["fwd_x:STAGES", "fwd_x:STAGES=many", "fwd_x:"] {
            assert!(knobs_in(wrong).unwrap_err().contains("NAME=NUMBER"), "{wrong}");
        }
    }
}
