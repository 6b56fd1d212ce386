//! The samples of an item over the lanes of a warp.

use super::lane_groups::{self, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_warp_shuffle.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 1: warp-shuffle reduction",
    idea: "a lane per sample with all 32 channels, sums by 31 shuffles",
    why: "no coordinate computed twice, sums exchanged in registers",
    claim: "no figure",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, 32),
    ..PLAIN
};
