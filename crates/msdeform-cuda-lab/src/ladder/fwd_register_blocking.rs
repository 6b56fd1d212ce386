//! Several queries per group of lanes.

use msdeform::Numerics;

use super::lane_groups::{DEFAULT_THREADS, GROUP_LANES, THREADS};
use super::{AMPERE, Rung, anything, grid_over_items, spec};
use msdeform_cuda::driver::LaunchGeometry;
use crate::sources::kernel_source;
use msdeform_cuda::variants::{Configuration, Knob};

/// See `kernels/ladder/fwd_register_blocking.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_register_blocking",
        "guide (002), suite 1: register blocking",
        "four lanes keep the sums of several neighbouring queries",
        "independent work within a lane, level geometry looked up once",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_register_blocking.cu"),
    claim: "no figure",
    knobs: &[
        THREADS,
        Knob { name: "QUERIES", values: &[2, 4], meaning: "queries of a group of lanes" },
    ],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let queries = knobs.get("QUERIES").unwrap_or(4);
        let threads = knobs.get(THREADS.name).unwrap_or(DEFAULT_THREADS);
        let items_per_block = threads as u64 / GROUP_LANES * queries as u64;
        let blocks = grid_over_items(call, items_per_block)?;
        Ok(Configuration {
            knobs: vec![(THREADS.name, threads), ("QUERIES", queries)],
            pipeline: LaunchGeometry::linear(blocks, threads as u32).into(),
            ..Configuration::default()
        })
    },
};
