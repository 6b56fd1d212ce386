//! All CUDA variants, each once: the ladder and the product's. Listings, verification, benchmarks and documentation
//! iterate over this list.

use msdeform::Direction;
use msdeform_cuda::REGISTRY as PRODUCT;
use msdeform_cuda::variants::Variant;

use crate::fwd_original::FWD_ORIGINAL;
use crate::ladder::RUNGS;

/// Every variant, in the order of tables: forward before backward, the ladder first, then the variants that the
/// dispatcher uses.
pub static REGISTRY: &[&Variant] =
    &joined::<{ 1 + RUNGS.len() + PRODUCT.len() }>(&[BASELINE, RUNGS, PRODUCT]);

const BASELINE: &[&Variant] = &[&FWD_ORIGINAL];

/// The variants of this crate.
#[cfg(test)]
pub(crate) static OWN: &[&Variant] = &joined::<{ 1 + RUNGS.len() }>(&[BASELINE, RUNGS]);

const fn joined<const N: usize>(parts: &[&[&'static Variant]]) -> [&'static Variant; N] {
    let mut all: [&'static Variant; N] = [&FWD_ORIGINAL; N];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut i = 0;
        while i < parts[part].len() {
            all[at] = parts[part][i];
            i += 1;
            at += 1;
        }
        part += 1;
    }
    all
}

/// The variant with an id.
pub fn find(id: &str) -> Result<&'static Variant, msdeform::Error> {
    msdeform_cuda::registry::find_among(REGISTRY, id)
}

/// The variant that speed-ups are relative to: the first rung of a direction's ladder, if it has one.
pub fn baseline(direction: Direction) -> Option<&'static Variant> {
    REGISTRY.iter().copied().find(|variant| variant.spec.direction == direction)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use msdeform::{BackwardCall, Gradients, Offsets, OutputStrides, Problem};
    use msdeform_cuda::variants::{Call, KnobChoices};
    use msdeform_cuda::{DeviceProps, entry_name};

    use super::*;

    #[test]
    fn no_id_is_used_twice() {
        let ids: BTreeSet<&str> = REGISTRY.iter().map(|variant| variant.spec.id).collect();
        assert_eq!(ids.len(), REGISTRY.len());
    }

    /// A step without a kernel, or a kernel without a step, would only show on a GPU.
    #[test]
    fn steps_and_entries_match() {
        let device = DeviceProps::h200();
        for &variant in REGISTRY {
            let (spec, text) = (variant.spec, variant.source.text);
            let mut entries = BTreeSet::new();
            let rules = if variant.takes_offsets { &[false, true][..] } else { &[false] };
            for (&dtype, &from_offsets) in
                spec.dtypes.iter().flat_map(|dtype| rules.iter().map(move |rule| (dtype, rule)))
            {
                let subsets = Gradients::subsets();
                for (gradients, is_expanded) in
                    subsets.iter().flat_map(|&gradients| [(gradients, false), (gradients, true)])
                {
                    let gradients = Gradients { references: from_offsets, ..gradients };
                    let mut problem = Problem::builder();
                    if from_offsets {
                        problem = problem.offsets(Offsets::from_points());
                    }
                    let problem = problem
                        .heads(8)
                        .channels(32)
                        .queries(64)
                        .levels([(8, 8), (4, 4)])
                        .points(4)
                        .dtype(dtype)
                        .layout(spec.layouts[0])
                        .build()
                        .unwrap();
                    let mut call = Call::in_direction(spec.direction, &problem, &device);
                    call.backward = call.backward.map(|b| BackwardCall { gradients, ..b });
                    if let Some(backward) = call.backward.as_mut().filter(|_| is_expanded) {
                        backward.grad_output =
                            OutputStrides { batch: 0, query: 0, head: 0, channel: 0 };
                    }
                    let configured = variant.configure(&call, &KnobChoices::default()).unwrap();
                    let launches = configured.pipeline.launches();
                    entries.extend(launches.map(|(step, _)| entry_name(spec.id, step)));
                }
            }
            for entry in &entries {
                let declared = format!(" {entry}(const __grid_constant__ ");
                assert!(text.contains(&declared), "{entry} is not in {}.cu", spec.id);
            }
            let declared = text.matches("extern \"C\" __global__").count();
            assert_eq!(declared, entries.len(), "{}: {entries:?}", spec.id);
        }
    }

    #[test]
    fn find_refuses_unknown_ids_by_name() {
        assert_eq!(find("fwd_simple").unwrap().spec.id, "fwd_simple");
        assert_eq!(baseline(Direction::Forward).unwrap().spec.id, "fwd_original");
        assert_eq!(baseline(Direction::Backward).unwrap().spec.id, "bwd_original");
        assert!(find("fwd_fastest").unwrap_err().to_string().contains("fwd_fastest"));
    }
}
