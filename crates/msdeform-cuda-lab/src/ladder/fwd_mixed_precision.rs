//! The blend in packed half.

use msdeform::Numerics;

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Knob;

/// See `kernels/ladder/fwd_mixed_precision.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_mixed_precision",
        "guide (002), suite 2: mixed precision",
        "vector loads with packed-half products, sums in half or fp32",
        "what half arithmetic saves, and what it costs in accuracy",
        // Sums of 128 products in 11 bits.
        Numerics::Loose { rel_l2: 5e-3 },
    ),
    source: kernel_source!("ladder/fwd_mixed_precision.cu"),
    claim: "-2.1 %",
    knobs: &[
        THREADS,
        Knob { name: "SUM_BITS", values: &[16, 32], meaning: "format of the sums over samples" },
    ],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        configuration.knobs.push(("SUM_BITS", knobs.get("SUM_BITS").unwrap_or(16)));
        Ok(configuration)
    },
};
