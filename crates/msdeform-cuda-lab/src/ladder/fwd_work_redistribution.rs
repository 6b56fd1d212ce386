//! The samples of one item over the groups of a warp.

use super::lane_groups::{self, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_work_redistribution.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 2: work redistribution",
    idea: "eight groups of four lanes share the samples of one query",
    why: "eight times the warps, each an eighth as long",
    claim: "+3.6 %",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, 32),
    ..PLAIN
};
