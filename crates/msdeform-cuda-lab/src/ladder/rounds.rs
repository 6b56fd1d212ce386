//! Common parts of the rungs with a warp per item: launches, and tiles for the copy engine.

use std::sync::Arc;

use super::{CHANNELS, HOPPER, grid_over_items};
use crate::preamble::{MapKind, TileMaps};
use msdeform_cuda::LaunchGeometry;
use msdeform_cuda::variants::{Call, Configuration};

/// Warps of a block, unless a knob says otherwise.
pub(super) const WARPS: u32 = 8;
/// Blocks that a persistent grid has on each multiprocessor: `BLOCKS_PER_SM` of the kernels.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// Samples of a round.
const ROUND_SAMPLES: u32 = 8;
/// The tiles of a round: eight samples, 2 x 2 pixels each, 64 bytes a pixel.
pub(super) const ROUND_BYTES: u32 = ROUND_SAMPLES * 4 * 64;
/// Channels, columns and rows of a tile.
pub(super) const TILE: [u32; 3] = [CHANNELS as u32, 2, 2];

/// A map for every level, the slab being its last dimension: any number of slabs.
pub(super) const MAPS_PER_LEVEL: TileMaps = TileMaps { tile: TILE, kind: MapKind::PerLevel };

/// A warp for every item.
pub(super) fn warp_per_item(
    call: &Call<'_>,
    warps: u32,
    shared_bytes: u32,
) -> Result<LaunchGeometry, String> {
    let blocks = grid_over_items(call, u64::from(warps))?;
    Ok(LaunchGeometry { shared_bytes, ..LaunchGeometry::linear(blocks, 32 * warps) })
}

/// A persistent grid: as many blocks as run at once. Blocks without work leave immediately.
pub(super) fn persistent(call: &Call<'_>, shared_bytes: u32) -> LaunchGeometry {
    let blocks = BLOCKS_PER_MULTIPROCESSOR * call.device.multiprocessors.max(1);
    LaunchGeometry { shared_bytes, ..LaunchGeometry::linear(blocks, 32 * WARPS) }
}

/// One kernel whose lanes load both coordinates of a location at once.
pub(super) fn configured(call: &Call<'_>, geometry: LaunchGeometry) -> Configuration {
    Configuration {
        pipeline: geometry.into(),
        sampling_alignment: 2 * call.problem.sampling_dtype().size_bytes(),
        ..Configuration::default()
    }
}

pub(super) fn has_copy_engine(call: &Call<'_>) -> bool {
    call.device.compute_capability >= HOPPER
}

/// Whether a map per level describes the values.
pub(super) fn maps_per_level(call: &Call<'_>) -> Result<(), String> {
    MAPS_PER_LEVEL.of(call).map(|_| ())
}

/// Mirrors `Roles` in `kernels/ladder/warp_roles.cuh`.
pub(super) struct Roles {
    pub(super) producers: u32,
    pub(super) stages: u32,
}

impl Roles {
    /// Tiles, weights and two barriers for every stage of every consumer, followed by `more_bytes`.
    fn shared_bytes(&self, more_bytes: u32) -> u32 {
        let buffers = (WARPS - self.producers) * self.stages;
        buffers * (ROUND_BYTES + ROUND_SAMPLES * 16 + 2 * 8) + more_bytes
    }

    pub(super) fn configuration(
        &self,
        call: &Call<'_>,
        more_bytes: u32,
        knobs: Vec<(&'static str, i64)>,
    ) -> Configuration {
        Configuration {
            knobs,
            preamble: Some(Arc::new(MAPS_PER_LEVEL)),
            ..configured(call, persistent(call, self.shared_bytes(more_bytes)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_blocks_fit_a_hopper_multiprocessor() {
        let fits = |producers, stages| {
            let of_block = Roles { producers, stages }.shared_bytes(408) + (1 << 10);
            BLOCKS_PER_MULTIPROCESSOR * of_block <= 228 << 10
        };
        for producers in 1..=4 {
            assert!(fits(producers, 2), "{producers} producers");
        }
        for stages in 2..=4 {
            assert!(fits(2, stages), "{stages} stages");
        }
    }
}
