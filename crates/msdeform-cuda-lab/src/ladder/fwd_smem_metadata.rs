//! Every sample placed once, in shared memory.

use msdeform::Numerics;

use super::lane_groups::{self, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;

/// Eight samples of 20 bytes for each of a warp's eight groups of lanes.
const SHARED_BYTES_PER_THREAD: u64 = 8 * 8 * 20 / 32;

/// See `kernels/ladder/fwd_smem_metadata.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_smem_metadata",
        "guide (002), suite 2: shared memory metadata",
        "vector loads; one lane of four places a sample for all of them",
        "coordinates and weights computed once per query",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_smem_metadata.cu"),
    claim: "+5.3 %",
    knobs: &[THREADS],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| lane_groups::launch_with_shared(call, knobs, SHARED_BYTES_PER_THREAD),
};
