//! The same kernel with part of L2 set aside for the values.

use msdeform::Numerics;

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Configuration;

/// See `kernels/ladder/fwd_l2_policy.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_l2_policy",
        "guide (002), suite 1: L2 cache optimization",
        "vector loads, launched with a persisting L2 window over the values",
        "whether streams push values out of L2",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_l2_policy.cu"),
    claim: "no figure",
    knobs: &[THREADS],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        Ok(Configuration { persisting_value: true, ..configuration })
    },
};
