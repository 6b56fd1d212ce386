//! The samples of one item over the groups of a warp.

use msdeform::Numerics;

use super::lane_groups::{self, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_work_redistribution.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_work_redistribution",
        "guide (002), suite 2: work redistribution",
        "eight groups of four lanes share the samples of one query",
        "eight times the warps, each an eighth as long",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_work_redistribution.cu"),
    claim: "+3.6 %",
    knobs: &[THREADS],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| lane_groups::launch(call, knobs, 32),
};
