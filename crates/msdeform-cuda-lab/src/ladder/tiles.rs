//! Tiles (004): the corners of a sample as one copy.

use std::sync::Arc;

use msdeform_cuda::preamble::PreambleRecipe;

use super::prelude::*;
use super::rounds::{ROUND_BYTES, TILE, WARPS, configured, has_copy_engine, warp_per_item};
use crate::preamble::{MapKind, TileMaps};

pub(super) const FWD_TILE_2X2: Rung = Rung {
    origin: "tiles (004): tile_2x2",
    idea: "a sample's four corners as a 2x2x32 tile in shared memory, copied by the whole warp",
    why: "the cost of a tile that is used once",
    claim: "no figure",
    knobs: &[Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" }],
    configure: |call, knobs| {
        let warps = knobs.get("WARPS").unwrap_or(8);
        Ok(Configuration {
            knobs: vec![("WARPS", warps)],
            ..configured(call, warp_per_item(call, warps as u32, ROUND_BYTES * warps as u32)?)
        })
    },
    ..PLAIN
};

/// The value of `MAPS` for GPUs and drivers without tensor maps: lanes copy tiles as in `fwd_tile_2x2`.
const COOPERATIVE: i64 = 0;

const KNOB: Knob = Knob {
    name: "MAPS",
    values: &[COOPERATIVE, 3, 4],
    meaning: "dimensions of a tensor map: 3 is a map per image, head and level, 4 one per level; \
              0 copies tiles without the copy engine",
};

pub(super) const FWD_TMA_TILE: Rung = Rung {
    origin: "tiles (004): tma_tile",
    idea: "the copy engine brings a sample's 2x2x32 tile, with zeros outside of the level instead of a border",
    why: "the speed of the copy engine with boxes of 256 bytes",
    claim: "not run: needs Hopper",
    knobs: &[KNOB],
    configure: |call, knobs| {
        let maps = knobs.get("MAPS").unwrap_or(if has_copy_engine(call) { 4 } else { COOPERATIVE });
        if maps != COOPERATIVE {
            check_capability(call, HOPPER, "the copy engine needs")?;
        }
        let kind = if maps == 3 { MapKind::PerSlab } else { MapKind::PerLevel };
        let tile_maps = (maps != COOPERATIVE).then_some(TileMaps { tile: TILE, kind });
        if let Some(tile_maps) = &tile_maps {
            tile_maps.of(call)?;
        }
        // Tiles, and a barrier for every warp.
        let shared_bytes = WARPS * (ROUND_BYTES + 8);
        Ok(Configuration {
            knobs: vec![("MAPS", maps)],
            preamble: tile_maps.map(|maps| Arc::new(maps) as Arc<dyn PreambleRecipe>),
            without_preamble: Some(("MAPS", COOPERATIVE)),
            ..configured(call, warp_per_item(call, WARPS, shared_bytes)?)
        })
    },
    ..PLAIN
};

#[cfg(test)]
mod tests {
    use msdeform::{DType, Problem, ValueLayout};

    use super::*;
    use crate::registry::find;
    use msdeform_cuda::DeviceProps;
    use msdeform_cuda::variants::KnobChoices;

    fn configure(
        compute_capability: (u32, u32),
        batch: usize,
        maps: Option<i64>,
    ) -> Result<Configuration, String> {
        let problem = Problem::builder().batch(batch).heads(1).channels(32).queries(5).points(8);
        let problem = problem.levels([(8, 9), (4, 5), (2, 3), (2, 2)]).dtype(DType::F16);
        let problem = problem.layout(ValueLayout::HeadMajor).build().unwrap();
        let device = DeviceProps { compute_capability, ..DeviceProps::h200() };
        let chosen: Vec<_> = maps.map(|maps| ("MAPS".to_owned(), maps)).into_iter().collect();
        let rung = find("fwd_tma_tile").unwrap();
        rung.configure(&Call::new(&problem, &device), &KnobChoices::new(rung, &chosen).unwrap())
    }

    #[test]
    fn without_a_copy_engine_lanes_copy_the_tiles() {
        let configuration = configure((8, 0), 48, None).unwrap();
        assert_eq!(configuration.knobs, [("MAPS", COOPERATIVE)]);
        assert!(configuration.preamble.is_none());
        let reason = configure((8, 0), 48, Some(4)).unwrap_err();
        assert!(reason.contains("8.0") && reason.contains("copy engine"), "{reason}");
    }

    #[test]
    fn a_refused_map_has_a_knob_that_does_without() {
        let configuration = configure((9, 0), 48, None).unwrap();
        assert!(configuration.preamble.is_some());
        let (knob, value) = configuration.without_preamble.unwrap();
        assert!(KNOB.name == knob && KNOB.values.contains(&value));
    }

    #[test]
    fn the_parameter_limits_maps_per_slab() {
        assert!(configure((9, 0), 56, Some(3)).is_ok());
        let reason = configure((9, 0), 57, Some(3)).unwrap_err();
        assert!(reason.contains("57 slabs"), "{reason}");
        assert!(configure((9, 0), 57, Some(4)).is_ok());
    }
}
