//! Several queries per group of lanes.

use super::lane_groups::{DEFAULT_THREADS, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_register_blocking.cu`.
pub(super) const RUNG: Rung = Rung {
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
