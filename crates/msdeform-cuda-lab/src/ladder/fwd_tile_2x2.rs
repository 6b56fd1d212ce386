//! The corners of a sample as one tile, copied by a warp.

use msdeform::Numerics;

use super::rounds::{ROUND_BYTES, paired_sampling_alignment, warp_per_item};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::{Configuration, Knob};

/// See `kernels/ladder/fwd_tile_2x2.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_tile_2x2",
        "tiles (004): tile_2x2",
        "a sample's four corners as a 2x2x32 tile in shared memory, copied by the whole warp",
        "what a tile costs that is used once",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_tile_2x2.cu"),
    claim: "no figure",
    knobs: &[Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" }],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let warps = knobs.get("WARPS").unwrap_or(8);
        Ok(Configuration {
            knobs: vec![("WARPS", warps)],
            pipeline: warp_per_item(call, warps as u32, ROUND_BYTES * warps as u32)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
};
