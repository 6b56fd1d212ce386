//! Small levels whole in shared memory, large ones streamed.

use super::lane_groups::GROUP_LANES;
use super::resident_levels::{self, SHARED_KB};
use super::prelude::*;

/// See `kernels/ladder/fwd_persistent_full.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002): persistent_full",
    idea: "one block per SM, a contiguous run of queries, small levels kept whole",
    why: "L1 for the large levels, shared memory for the small ones",
    claim: "2.2 TFLOP/s, 4.4x",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let blocks = items(call).div_ceil(1024 / GROUP_LANES);
        let (configuration, _) = resident_levels::launch(call, knobs, 1024, blocks)?;
        Ok(configuration)
    },
    ..PLAIN
};
