//! The samples of an item over the lanes of a warp.

use msdeform::Numerics;

use super::lane_groups::{self, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_warp_shuffle.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_warp_shuffle",
        "guide (002), suite 1: warp-shuffle reduction",
        "a lane per sample with all 32 channels, totals by 31 shuffles",
        "no coordinate computed twice, sums exchanged in registers",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_warp_shuffle.cu"),
    claim: "no figure",
    knobs: &[THREADS],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| lane_groups::launch(call, knobs, 32),
};
