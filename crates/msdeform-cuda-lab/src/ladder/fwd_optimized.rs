//! Locations and weights through shared memory.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// Bytes of a row in shared memory: a multiple of 16, with 16 bytes between rows.
fn padded(row_bytes: usize) -> u64 {
    (row_bytes.next_multiple_of(16) + 16) as u64
}

/// See `kernels/ladder/fwd_optimized.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002): optimized",
    idea: "a block stages its queries' locations and weights in shared memory",
    why: "coordinates read once in bursts, L1 left to pixels",
    claim: "1.2 TFLOP/s, 2.4x",
    knobs: &[THREADS],
    configure: |call, knobs| {
        let row = call.problem.samples() * call.problem.sampling_dtype().size_bytes();
        let item = padded(2 * row) + padded(row);
        lane_groups::launch_with_shared(call, knobs, item.div_ceil(GROUP_LANES))
    },
    ..PLAIN
};
