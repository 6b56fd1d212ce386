//! The guide (002): its own kernels, and its two suites of techniques.

use std::sync::Arc;

use super::lane_groups::{self, DEFAULT_THREADS, GROUP_LANES, THREADS};
use super::prelude::*;
use super::resident_levels::{self, SHARED_KB};
use super::sample_records;
use crate::persisting::PersistingValue;

pub(super) const FWD_SIMPLE: Rung = Rung {
    origin: "guide (002): simple",
    idea: "a warp per query, a lane per channel: coalesced loads of 64 bytes",
    why: "the gain of coalescing alone",
    claim: "0.8 TFLOP/s, 1.6x",
    knobs: &[Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" }],
    configure: |call, knobs| {
        let warps = knobs.get("WARPS").unwrap_or(8);
        let blocks = grid_over_items(call, warps as u64)?;
        Ok(Configuration {
            knobs: vec![("WARPS", warps)],
            pipeline: LaunchGeometry::linear(blocks, 32 * warps as u32).into(),
            sampling_alignment: call.problem.sampling_dtype().size_bytes(),
            ..Configuration::default()
        })
    },
    ..PLAIN
};

/// Bytes of a row in shared memory: a multiple of 16, with 16 bytes between rows.
fn padded(row_bytes: usize) -> u64 {
    (row_bytes.next_multiple_of(16) + 16) as u64
}

pub(super) const FWD_OPTIMIZED: Rung = Rung {
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

pub(super) const FWD_PERSISTENT: Rung = Rung {
    origin: "guide (002): persistent",
    idea: "one block per SM keeps the small levels' pixels and steals queries",
    why: "coarse levels never leave the SM, and all SMs end together",
    claim: "1.8 TFLOP/s, 3.6x",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let (mut pipeline, mut derived) = (Pipeline::default(), Derived::default());
        let units = resident_levels::reserve_units(call, &mut pipeline, &mut derived)?;
        let (configuration, geometry) = resident_levels::launch(call, knobs, 1024, units)?;
        pipeline.launch("", geometry);
        Ok(Configuration { pipeline, derived, ..configuration })
    },
    ..PLAIN
};

pub(super) const FWD_PERSISTENT_FULL: Rung = Rung {
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

pub(super) const FWD_CHANNEL_SPLIT: Rung = Rung {
    origin: "guide (002): channel split",
    idea: "a block owns 8 of 32 channels, so four times the pixels fit its shared memory",
    why: "three of four levels in shared memory",
    claim: "3.2x slower",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let blocks = (items(call) * GROUP_LANES).div_ceil(1024);
        let (configuration, _) = resident_levels::launch(call, knobs, 1024, blocks)?;
        Ok(configuration)
    },
    ..PLAIN
};

pub(super) const FWD_ULTRA: Rung = Rung {
    origin: "guide (002): ultra",
    idea: "persistent, kept levels, stealing, precomputed weights, unrolling, L2 hints",
    why: "whether the gains of techniques add up",
    claim: "1.86 TFLOP/s, 3.7x",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let (mut pipeline, mut derived) = (Pipeline::default(), Derived::default());
        let units = resident_levels::reserve_units(call, &mut pipeline, &mut derived)?;
        let (configuration, geometry) = resident_levels::launch(call, knobs, 512, units)?;
        sample_records::write(&mut pipeline, &mut derived, call)?;
        pipeline.launch("", geometry);
        Ok(Configuration { pipeline, derived, ..configuration })
    },
    ..PLAIN
};

pub(super) const FWD_WARP_SHUFFLE: Rung = Rung {
    origin: "guide (002), suite 1: warp-shuffle reduction",
    idea: "a lane per sample with all 32 channels, sums by 31 shuffles",
    why: "no coordinate computed twice, sums exchanged in registers",
    claim: "no figure",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, 32),
    ..PLAIN
};

pub(super) const FWD_ASYNC_PIPELINE: Rung = Rung {
    origin: "guide (002), suite 1: async pipeline",
    idea: "cp.async copies the next samples' corners while the current one is added up",
    why: "loads in flight without registers",
    claim: "no figure",
    knobs: &[
        THREADS,
        Knob { name: "STAGES", values: &[2, 4], meaning: "samples in flight" },
        Knob {
            name: "COPY_BYTES",
            values: &[8, 16],
            meaning: "bytes of one copy: 16 go past L1, 8 through it",
        },
    ],
    configure: |call, knobs| {
        let stages = knobs.get("STAGES").unwrap_or(2);
        // Four corners of 16 bytes.
        let mut configuration = lane_groups::launch_with_shared(call, knobs, 64 * stages as u64)?;
        configuration.knobs.push(("STAGES", stages));
        configuration.knobs.push(("COPY_BYTES", knobs.get("COPY_BYTES").unwrap_or(16)));
        Ok(configuration)
    },
    ..PLAIN
};

pub(super) const FWD_REGISTER_BLOCKING: Rung = Rung {
    origin: "guide (002), suite 1: register blocking",
    idea: "four lanes keep the sums of several neighbouring queries",
    why: "independent work within a lane, level geometry looked up once",
    claim: "no figure",
    knobs: &[
        THREADS,
        Knob { name: "QUERIES", values: &[2, 4], meaning: "queries of a group of lanes" },
    ],
    configure: |call, knobs| {
        let queries = knobs.get("QUERIES").unwrap_or(4);
        let threads = knobs.get(THREADS.name).unwrap_or(DEFAULT_THREADS);
        let blocks = grid_over_items(call, threads as u64 / GROUP_LANES * queries as u64)?;
        Ok(Configuration {
            knobs: vec![(THREADS.name, threads), ("QUERIES", queries)],
            pipeline: LaunchGeometry::linear(blocks, threads as u32).into(),
            ..Configuration::default()
        })
    },
    ..PLAIN
};

pub(super) const FWD_L2_POLICY: Rung = Rung {
    origin: "guide (002), suite 1: L2 cache optimization",
    idea: "vector loads, launched with a persisting L2 window over the values",
    why: "whether streams push values out of L2",
    claim: "no figure",
    knobs: &[THREADS],
    configure: |call, knobs| {
        let configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        Ok(Configuration { preamble: Some(Arc::new(PersistingValue)), ..configuration })
    },
    ..PLAIN
};

pub(super) const FWD_VECTOR_LOADS: Rung = Rung {
    origin: "guide (002), suite 1: vector loads",
    idea: "four lanes per query, 16-byte loads, eight queries a warp",
    why: "the gain of wide loads alone; the base of suite 2",
    claim: "no figure",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, GROUP_LANES),
    ..PLAIN
};

/// Eight samples of 20 bytes for each of a warp's eight groups of lanes.
const METADATA_BYTES_PER_THREAD: u64 = 8 * 8 * 20 / 32;

pub(super) const FWD_SMEM_METADATA: Rung = Rung {
    origin: "guide (002), suite 2: shared memory metadata",
    idea: "vector loads; one lane of four places a sample for all of them",
    why: "coordinates and weights computed once per query",
    claim: "+5.3 %",
    knobs: &[THREADS],
    configure: |call, knobs| {
        lane_groups::launch_with_shared(call, knobs, METADATA_BYTES_PER_THREAD)
    },
    ..PLAIN
};

pub(super) const FWD_WORK_REDISTRIBUTION: Rung = Rung {
    origin: "guide (002), suite 2: work redistribution",
    idea: "eight groups of four lanes share the samples of one query",
    why: "eight times the warps, each an eighth as long",
    claim: "+3.6 %",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, 32),
    ..PLAIN
};

pub(super) const FWD_LOOP_UNROLL: Rung = Rung {
    origin: "guide (002), suite 2: loop unrolling",
    idea: "vector loads, several samples' corners in flight per lane",
    why: "the gain of more loads in flight",
    claim: "+2.1 %",
    knobs: &[
        THREADS,
        Knob { name: "UNROLL", values: &[2, 4, 8], meaning: "samples per turn of the loop" },
    ],
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        configuration.knobs.push(("UNROLL", knobs.get("UNROLL").unwrap_or(4)));
        Ok(configuration)
    },
    ..PLAIN
};

pub(super) const FWD_PRECOMPUTED_WEIGHTS: Rung = Rung {
    origin: "guide (002), suite 2: precomputed weights",
    idea: "a first kernel writes every sample's offset and weights to memory",
    why: "whether placing samples is worth a pass over memory",
    claim: "+1.2 %",
    // No knob THREADS, because the step before has blocks of one size.
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        let mut pipeline = Pipeline::default();
        sample_records::write(&mut pipeline, &mut configuration.derived, call)?;
        pipeline.steps.append(&mut configuration.pipeline.steps);
        Ok(Configuration { pipeline, ..configuration })
    },
    ..PLAIN
};

pub(super) const FWD_L2_HINTS: Rung = Rung {
    origin: "guide (002), suite 2: L2 cache hints",
    idea: "vector loads with evict-last values and evict-first streams",
    why: "the L2 policy per instruction instead of per launch",
    claim: "+0.8 %",
    knobs: &[THREADS],
    configure: |call, knobs| lane_groups::launch(call, knobs, GROUP_LANES),
    ..PLAIN
};

pub(super) const FWD_MIXED_PRECISION: Rung = Rung {
    origin: "guide (002), suite 2: mixed precision",
    idea: "vector loads with packed-half products, sums in half or fp32",
    why: "the time that half arithmetic saves, and its cost in accuracy",
    // Sums of 128 products in 11 bits.
    numerics: Numerics::Loose { rel_l2: 5e-3 },
    claim: "-2.1 %",
    knobs: &[
        THREADS,
        Knob { name: "SUM_BITS", values: &[16, 32], meaning: "bits of the sums over samples" },
    ],
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        configuration.knobs.push(("SUM_BITS", knobs.get("SUM_BITS").unwrap_or(16)));
        Ok(configuration)
    },
    ..PLAIN
};
