//! Direct loads, four lanes an item, fp32 sums.

use msdeform::Numerics;

use super::{AMPERE, Rung, anything, grid_over_items, spec};
use msdeform_cuda::driver::LaunchGeometry;
use crate::sources::kernel_source;
use msdeform_cuda::variants::chunked_sample::sampling_alignment;
use msdeform_cuda::variants::{Configuration, Knob};

/// Items of a warp: four lanes each.
const ITEMS_PER_WARP: i64 = 8;

/// See `kernels/ladder/fwd_distributed.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_distributed",
        "report (001): distributed",
        "four lanes an item, direct 16-byte loads through L1, no shared memory, no branches",
        "how far straight-line code gets, and that exact sums cost nothing against half ones",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_distributed.cu"),
    claim: "671 us, 1.08x",
    knobs: &[Knob { name: "THREADS", values: &[128, 256], meaning: "threads of a block" }],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let threads = knobs.get("THREADS").unwrap_or(128);
        let blocks = grid_over_items(call, (threads / 32 * ITEMS_PER_WARP) as u64)?;
        Ok(Configuration {
            knobs: vec![("THREADS", threads)],
            pipeline: LaunchGeometry::linear(blocks, threads as u32).into(),
            sampling_alignment: sampling_alignment(call),
            ..Configuration::default()
        })
    },
};
