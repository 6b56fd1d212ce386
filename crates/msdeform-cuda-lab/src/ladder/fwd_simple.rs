//! A warp per item, a lane per channel.

use super::prelude::*;

/// See `kernels/ladder/fwd_simple.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002): simple",
    idea: "a warp per query, a lane per channel: coalesced loads of 64 bytes",
    why: "the gain of coalescing alone",
    claim: "0.8 TFLOP/s, 1.6x",
    knobs: &[Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" }],
    configure: |call, knobs| {
        let warps = knobs.get("WARPS").unwrap_or(8);
        let blocks = grid_over_items(call, warps as u64)?;
        Ok(Configuration {
            knobs: vec![("WARPS", warps)],
            pipeline: LaunchGeometry::linear(blocks, 32 * warps as u32).into(),
            sampling_alignment: call.problem.sampling_dtype().size_bytes(),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
