//! Every access has a hint how long L2 should keep its line.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_l2_hints.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 2: L2 cache hints",
    idea: "vector loads with evict-last values and evict-first streams",
    why: "the L2 policy per instruction instead of per launch",
    claim: "+0.8 %",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, GROUP_LANES),
    ..PLAIN
};
