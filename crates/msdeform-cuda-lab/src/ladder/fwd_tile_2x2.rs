//! The corners of a sample as one tile, copied by a warp.

use super::rounds::{ROUND_BYTES, paired_sampling_alignment, warp_per_item};
use super::prelude::*;

/// See `kernels/ladder/fwd_tile_2x2.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "tiles (004): tile_2x2",
    idea: "a sample's four corners as a 2x2x32 tile in shared memory, copied by the whole warp",
    why: "the cost of a tile that is used once",
    claim: "no figure",
    knobs: &[Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" }],
    configure: |call, knobs| {
        let warps = knobs.get("WARPS").unwrap_or(8);
        Ok(Configuration {
            knobs: vec![("WARPS", warps)],
            pipeline: warp_per_item(call, warps as u32, ROUND_BYTES * warps as u32)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
