//! The sum over corners on the tensor cores.

use super::prelude::*;

/// Items of a warp, one after the other.
const ITEMS_PER_WARP: u64 = 8;

/// See `kernels/ladder/fwd_tensor_core.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "analysis (000): tensor cores",
    idea: "corners times weights as m16n8k16 products: k is (corner, parity), A is the loaded registers",
    why: "the analysis calls tensor cores not applicable",
    claim: "\"not applicable\"",
    knobs: &[
        Knob {
            name: "SPLIT",
            values: &[0, 1],
            meaning: "1: weights as the sum of two halves, twice the products",
        },
        Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" },
    ],
    configure: |call, knobs| {
        let split = knobs.get("SPLIT").unwrap_or(0);
        let warps = knobs.get("WARPS").unwrap_or(4);
        let blocks = grid_over_items(call, warps as u64 * ITEMS_PER_WARP)?;
        Ok(Configuration {
            knobs: vec![("SPLIT", split), ("WARPS", warps)],
            pipeline: LaunchGeometry::linear(blocks, 32 * warps as u32).into(),
            sampling_alignment: call.problem.sampling_dtype().size_bytes(),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
