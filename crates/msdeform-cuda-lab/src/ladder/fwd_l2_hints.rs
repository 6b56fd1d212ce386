//! Every access says how long L2 should keep its line.

use msdeform::Numerics;

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_l2_hints.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_l2_hints",
        "guide (002), suite 2: L2 cache hints",
        "vector loads with evict-last values and evict-first streams",
        "the L2 policy per instruction instead of per launch",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_l2_hints.cu"),
    claim: "+0.8 %",
    knobs: &[THREADS],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| lane_groups::launch(call, knobs, GROUP_LANES),
};
