//! What the dispatcher and tuning files choose from, once. The laboratory has more (`msdeform-cuda-lab`).

use crate::variants::{
    Variant, bwd_general::BWD_GENERAL, bwd_level_sort::BWD_LEVEL_SORT, bwd_original::BWD_ORIGINAL,
    bwd_tile_sort::BWD_TILE_SORT, fwd_general::FWD_GENERAL, fwd_split_gather::FWD_SPLIT_GATHER,
    fwd_tile_gather::FWD_TILE_GATHER,
};

/// Every variant of the product, forward before backward.
pub const REGISTRY: &[&Variant] = &[
    &FWD_GENERAL,
    &FWD_TILE_GATHER,
    &FWD_SPLIT_GATHER,
    &BWD_ORIGINAL,
    &BWD_GENERAL,
    &BWD_TILE_SORT,
    &BWD_LEVEL_SORT,
];

/// The variant with an id.
pub fn find(id: &str) -> Result<&'static Variant, msdeform::Error> {
    find_among(REGISTRY, id)
}

/// The one with an id among some: the product's, or with those of the laboratory.
pub fn find_among(
    variants: &[&'static Variant],
    id: &str,
) -> Result<&'static Variant, msdeform::Error> {
    let found = variants.iter().copied().find(|variant| variant.spec.id == id);
    found.ok_or_else(|| msdeform::Error::UnknownVariant { id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kernel_is_registered_once_under_its_own_name() {
        let on_disk: BTreeSet<String> = crate::sources::on_disk(".cu").into_iter().collect();
        let registered: BTreeSet<String> =
            REGISTRY.iter().map(|variant| variant.source.name.to_owned()).collect();
        assert_eq!(registered.len(), REGISTRY.len(), "an id is used twice");
        assert_eq!(on_disk, registered);
        for variant in REGISTRY {
            assert_eq!(variant.source.name, format!("{}.cu", variant.spec.id));
            assert!(!variant.spec.rung);
        }
    }

    #[test]
    fn ids_are_found_and_unknown_ones_refused_by_name() {
        assert_eq!(find("fwd_general").unwrap().spec.id, "fwd_general");
        assert!(find("fwd_fastest").unwrap_err().to_string().contains("fwd_fastest"));
    }
}
