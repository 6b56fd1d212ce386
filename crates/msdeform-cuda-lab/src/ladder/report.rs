//! The report (001): direct loads, and levels in shared memory.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;
use super::resident::{resident_levels, shares_of_a_slab};

/// Threads and items of a block that keeps levels.
const RESIDENT_THREADS: u32 = 1024;
const RESIDENT_ITEMS: u64 = RESIDENT_THREADS as u64 / 4;
/// Threads and items of a block that copies samples.
const COPYING_THREADS: u32 = 128;
const COPYING_ITEMS: u32 = COPYING_THREADS / 4;
const PIXEL_BYTES: u32 = 64;

pub(super) const FWD_DIRECT_VEC8: Rung = Rung {
    origin: "report (001): original",
    idea: "eight channels a thread, 16-byte loads past L1, coordinates and sums in half",
    why: "the baseline of the seeds' measurements, with its error",
    // A position of 128 and more is rounded to an eighth of a pixel: see the page.
    numerics: Numerics::Loose { rel_l2: 6e-2 },
    claim: "724 us, 1.00x",
    knobs: &[THREADS],
    configure: |call, knobs| {
        let threads = knobs.get(THREADS.name).unwrap_or(256);
        let launched = lane_groups::launch_of(call, threads, GROUP_LANES)?;
        Ok(Configuration { sampling_alignment: sampling_alignment(call), ..launched })
    },
    ..PLAIN
};

pub(super) const FWD_DISTRIBUTED: Rung = Rung {
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

pub(super) const FWD_DISTRIBUTED_CLUSTER: Rung = Rung {
    origin: "report (001): distributed, as its name says",
    idea: "a cluster of blocks keeps the levels that fit in its shared memory, pixels spread over the blocks",
    why: "the report's kernel has this name but uses no distributed shared memory",
    claim: "no figure",
    knobs: &[Knob { name: "CLUSTER", values: &[2, 4, 8], meaning: "blocks of a cluster" }],
    since: HOPPER,
    configure: |call, knobs| {
        let cluster = knobs.get("CLUSTER").unwrap_or(8);
        let capacity =
            call.device.shared_bytes_per_block as u64 / u64::from(PIXEL_BYTES) * cluster as u64;
        let (mask, pixels) = resident_levels(call, capacity)?;
        let holders = u64::from(call.device.multiprocessors) / cluster as u64;
        let shares = shares_of_a_slab(call, holders.max(1), cluster as u64 * RESIDENT_ITEMS);
        let blocks = grid(slabs(call) * shares * cluster as u64)?;
        let geometry = LaunchGeometry {
            shared_bytes: (pixels.div_ceil(cluster as u64) * u64::from(PIXEL_BYTES)) as u32,
            cluster: cluster as u32,
            ..LaunchGeometry::linear(blocks, RESIDENT_THREADS)
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

pub(super) const FWD_SMEM_PADDED: Rung = Rung {
    origin: "report (001): shared memory + padding",
    idea: "small levels in shared memory, pixels 32 + PADDING channels apart",
    why: "the cost of bank conflicts, and of avoiding them",
    claim: "971 us, 0.75x, no conflicts",
    knobs: &[Knob {
        name: "PADDING",
        values: &[0, 2, 8],
        meaning: "unused channels between pixels; the report's 2 allow loads of 4 bytes, 0 and 8 of 16",
    }],
    configure: |call, knobs| {
        let padding = knobs.get("PADDING").unwrap_or(2);
        let row_bytes = (CHANNELS as u64 + padding as u64) * 2;
        let capacity = call.device.shared_bytes_per_block as u64 / row_bytes;
        let (mask, pixels) = resident_levels(call, capacity)?;
        let shares = shares_of_a_slab(call, call.device.multiprocessors.into(), RESIDENT_ITEMS);
        let blocks = grid(slabs(call) * shares)?;
        let geometry = LaunchGeometry {
            shared_bytes: (pixels * row_bytes) as u32,
            ..LaunchGeometry::linear(blocks, RESIDENT_THREADS)
        };
        Ok(Configuration {
            knobs: vec![("PADDING", padding)],
            pipeline: geometry.into(),
            sampling_alignment: sampling_alignment(call),
            derived: Derived::of_count("resident_levels", mask)?,
            ..Configuration::default()
        })
    },
    ..PLAIN
};

pub(super) const FWD_ASYNC_DOUBLE_BUFFER: Rung = Rung {
    origin: "report (001): TMA optimized",
    idea: "cp.async copies the next samples' corners into one padded buffer while the other is added up",
    why: "whether asynchronous copies hide more latency than loads that are issued early",
    claim: "928 us, 0.78x",
    knobs: &[
        Knob { name: "POINTS", values: &[4, 8], meaning: "samples of a stage" },
        Knob { name: "PADDING", values: &[0, 32], meaning: "channels after the tile of an item" },
    ],
    configure: |call, knobs| {
        let points = knobs.get("POINTS").unwrap_or(4);
        let padding = knobs.get("PADDING").unwrap_or(32);
        let tile_bytes = points as u32 * 4 * PIXEL_BYTES + padding as u32 * 2;
        let shared_bytes = 2 * COPYING_ITEMS * tile_bytes;
        check_shared_bytes(call, shared_bytes.into())?;
        let blocks = grid_over_items(call, u64::from(COPYING_ITEMS))?;
        let geometry =
            LaunchGeometry { shared_bytes, ..LaunchGeometry::linear(blocks, COPYING_THREADS) };
        Ok(Configuration {
            knobs: vec![("POINTS", points), ("PADDING", padding)],
            pipeline: geometry.into(),
            sampling_alignment: sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
