//! Direct loads, four lanes an item, fp32 sums.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_distributed.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "report (001): distributed",
    idea: "four lanes an item, direct 16-byte loads through L1, no shared memory, no branches",
    why: "how fast straight-line code is, and that exact sums cost no more than half ones",
    claim: "671 us, 1.08x",
    knobs: &[THREADS],
    configure: |call, knobs| {
        let threads = knobs.get(THREADS.name).unwrap_or(128);
        let launched = lane_groups::launch_of(call, threads, GROUP_LANES)?;
        Ok(Configuration { sampling_alignment: sampling_alignment(call), ..launched })
    },
    ..PLAIN
};
