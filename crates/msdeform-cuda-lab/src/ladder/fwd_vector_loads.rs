//! Four lanes an item, 16 bytes a lane.

use msdeform::Numerics;

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_vector_loads.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_vector_loads",
        "guide (002), suite 1: vector loads",
        "four lanes per query, 16-byte loads, eight queries a warp",
        "what wide loads alone bring; the base of suite 2",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_vector_loads.cu"),
    claim: "no figure",
    knobs: &[THREADS],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| lane_groups::launch(call, knobs, GROUP_LANES),
};
