//! The blend in packed half.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_mixed_precision.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 2: mixed precision",
    idea: "vector loads with packed-half products, sums in half or fp32",
    why: "the time that half arithmetic saves, and its cost in accuracy",
    // Sums of 128 products in 11 bits.
    numerics: Numerics::Loose { rel_l2: 5e-3 },
    claim: "-2.1 %",
    knobs: &[
        THREADS,
        Knob { name: "SUM_BITS", values: &[16, 32], meaning: "bits of the sums over samples" },
    ],
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        configuration.knobs.push(("SUM_BITS", knobs.get("SUM_BITS").unwrap_or(16)));
        Ok(configuration)
    },
    ..PLAIN
};
