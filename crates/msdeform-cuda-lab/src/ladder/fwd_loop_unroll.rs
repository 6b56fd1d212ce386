//! Several samples per turn of the loop.

use msdeform::Numerics;

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Knob;

/// See `kernels/ladder/fwd_loop_unroll.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_loop_unroll",
        "guide (002), suite 2: loop unrolling",
        "vector loads, several samples' corners in flight per lane",
        "what more loads in flight bring",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_loop_unroll.cu"),
    claim: "+2.1 %",
    knobs: &[
        THREADS,
        Knob { name: "UNROLL", values: &[2, 4, 8], meaning: "samples per turn of the loop" },
    ],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        configuration.knobs.push(("UNROLL", knobs.get("UNROLL").unwrap_or(4)));
        Ok(configuration)
    },
};
