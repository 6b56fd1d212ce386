//! A slab's levels in the shared memory of a cluster.

use super::resident::{grid_over_shares, resident_levels, shares_of_a_slab};
use super::prelude::*;

const THREADS: u64 = 1024;
const ITEMS: u64 = THREADS / 4;
const PIXEL_BYTES: u64 = 64;

/// See `kernels/ladder/fwd_distributed_cluster.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "report (001): distributed, as its name says",
    idea: "a cluster of blocks keeps the levels that fit in its shared memory, pixels spread over the blocks",
    why: "the report's kernel has this name but uses no distributed shared memory",
    claim: "no figure",
    knobs: &[Knob { name: "CLUSTER", values: &[2, 4, 8], meaning: "blocks of a cluster" }],
    since: HOPPER,
    configure: |call, knobs| {
        let cluster = knobs.get("CLUSTER").unwrap_or(8);
        let capacity = call.device.shared_bytes_per_block as u64 / PIXEL_BYTES * cluster as u64;
        let (mask, pixels) = resident_levels(call, capacity)?;
        let holders = u64::from(call.device.multiprocessors) / cluster as u64;
        let shares = shares_of_a_slab(call, holders.max(1), cluster as u64 * ITEMS);
        let blocks = grid_over_shares(call, shares, cluster as u64)?;
        let geometry = LaunchGeometry {
            shared_bytes: (pixels.div_ceil(cluster as u64) * PIXEL_BYTES) as u32,
            cluster: cluster as u32,
            ..LaunchGeometry::linear(blocks, THREADS as u32)
        };
        Ok(Configuration {
            knobs: vec![("CLUSTER", cluster)],
            pipeline: geometry.into(),
            sampling_alignment: sampling_alignment(call),
            derived: Derived::of_count("resident_levels", mask)?,
            ..Configuration::default()
        })
    },
    ..PLAIN
};
