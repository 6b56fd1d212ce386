//! Four lanes an item, 16 bytes a lane.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_vector_loads.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 1: vector loads",
    idea: "four lanes per query, 16-byte loads, eight queries a warp",
    why: "the gain of wide loads alone; the base of suite 2",
    claim: "no figure",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, GROUP_LANES),
    ..PLAIN
};
