//! The seeds' own kernel: vectors of eight channels, half arithmetic.

use msdeform::Numerics;

use super::{AMPERE, Rung, anything, grid_over_items, spec};
use msdeform_cuda::driver::LaunchGeometry;
use crate::sources::kernel_source;
use msdeform_cuda::variants::chunked_sample::sampling_alignment;
use msdeform_cuda::variants::{Configuration, Knob};

/// Items of a warp: four lanes each.
const ITEMS_PER_WARP: i64 = 8;

/// See `kernels/ladder/fwd_direct_vec8.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_direct_vec8",
        "report (001): original",
        "eight channels a thread, 16-byte loads past L1, coordinates and sums in half",
        "what the seeds measured everything against, with its error",
        // A position of 128 and more is rounded to an eighth of a pixel: see the page.
        Numerics::Loose { rel_l2: 6e-2 },
    ),
    source: kernel_source!("ladder/fwd_direct_vec8.cu"),
    claim: "724 us, 1.00x",
    knobs: &[Knob { name: "THREADS", values: &[128, 256], meaning: "threads of a block" }],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let threads = knobs.get("THREADS").unwrap_or(256);
        let blocks = grid_over_items(call, (threads / 32 * ITEMS_PER_WARP) as u64)?;
        Ok(Configuration {
            knobs: vec![("THREADS", threads)],
            pipeline: LaunchGeometry::linear(blocks, threads as u32).into(),
            sampling_alignment: sampling_alignment(call),
            ..Configuration::default()
        })
    },
};
