//! Queries in the order of a space-filling curve.

use super::prelude::*;
use msdeform_cuda::variants::chunked_sample::paired_sampling_alignment;

const THREADS: u32 = 128;
/// Lanes that average an item's locations.
const KEY_LANES: u32 = 8;
const SORT_THREADS: u32 = 1024;
/// A counter per key, a sum per warp.
const SORT_SHARED_BYTES: u32 = (64 * 64 + SORT_THREADS / 32) * 4;

/// See `kernels/ladder/fwd_spatial_sort.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "analysis (000): better cache utilization",
    idea: "queries of a slab sorted along a Morton or Hilbert curve of their mean location, then gathered",
    why: "the reuse in L1 that an order can gain, and the cost of finding the order",
    claim: "10-15 % potential",
    knobs: &[Knob { name: "CURVE", values: &[0, 1], meaning: "0: Morton, 1: Hilbert" }],
    configure: |call, knobs| {
        let curve = knobs.get("CURVE").unwrap_or(1);
        let items = items(call) as usize;
        let slabs = (call.problem.batch() * call.problem.heads()) as u64;
        let mut pipeline = Pipeline::default();
        let mut derived = Derived::default();
        derived.size("order_at", pipeline.reserve(items * 4));
        derived.size("keys_at", pipeline.reserve(items * 2));
        let keys = grid_over_items(call, u64::from(THREADS / KEY_LANES))?;
        pipeline.launch("keys", LaunchGeometry::linear(keys, THREADS));
        let sort = LaunchGeometry::linear(slabs as u32, SORT_THREADS);
        pipeline.launch("sort", LaunchGeometry { shared_bytes: SORT_SHARED_BYTES, ..sort });
        pipeline.prepared();
        let gather = grid_over_items(call, u64::from(THREADS / 4))?;
        pipeline.launch("", LaunchGeometry::linear(gather, THREADS));
        Ok(Configuration {
            knobs: vec![("CURVE", curve)],
            pipeline,
            // The keys read both coordinates of a location at once.
            sampling_alignment: paired_sampling_alignment(call),
            derived,
            ..Configuration::default()
        })
    },
    ..PLAIN
};
