//! Every sample placed once, in shared memory.

use super::lane_groups::{self, THREADS};
use super::prelude::*;

/// Eight samples of 20 bytes for each of a warp's eight groups of lanes.
const SHARED_BYTES_PER_THREAD: u64 = 8 * 8 * 20 / 32;

/// See `kernels/ladder/fwd_smem_metadata.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 2: shared memory metadata",
    idea: "vector loads; one lane of four places a sample for all of them",
    why: "coordinates and weights computed once per query",
    claim: "+5.3 %",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch_with_shared(call, knobs, SHARED_BYTES_PER_THREAD),
    ..PLAIN
};
