//! A warp per item, a lane per channel.

use msdeform::Numerics;

use super::{AMPERE, Rung, anything, grid_over_items, spec};
use msdeform_cuda::driver::LaunchGeometry;
use crate::sources::kernel_source;
use msdeform_cuda::variants::{Configuration, Knob};

/// See `kernels/ladder/fwd_simple.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_simple",
        "guide (002): simple",
        "a warp per query, a lane per channel: coalesced loads of 64 bytes",
        "what coalescing alone brings",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_simple.cu"),
    claim: "0.8 TFLOP/s, 1.6x",
    knobs: &[Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" }],
    since: AMPERE,
    supports: anything,
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
};
