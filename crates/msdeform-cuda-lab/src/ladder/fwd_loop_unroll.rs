//! Several samples per turn of the loop.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_loop_unroll.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 2: loop unrolling",
    idea: "vector loads, several samples' corners in flight per lane",
    why: "the gain of more loads in flight",
    claim: "+2.1 %",
    knobs: &[
        THREADS,
        Knob { name: "UNROLL", values: &[2, 4, 8], meaning: "samples per turn of the loop" },
    ],
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        configuration.knobs.push(("UNROLL", knobs.get("UNROLL").unwrap_or(4)));
        Ok(configuration)
    },
    ..PLAIN
};
