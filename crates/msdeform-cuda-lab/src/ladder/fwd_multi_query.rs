//! Several queries share a block.

use super::rounds::{WARPS, paired_sampling_alignment, persistent};
use super::prelude::*;

/// See `kernels/ladder/fwd_multi_query.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): multi_query",
    idea: "a block takes several queries per turn; their warps share the samples and one barrier",
    why: "one query per block leaves half of the warps idle",
    claim: "no figure",
    knobs: &[Knob {
        name: "QUERIES",
        values: &[1, 2, 4],
        meaning: "queries of a block of eight warps",
    }],
    configure: |call, knobs| {
        let queries = knobs.get("QUERIES").unwrap_or(4);
        // Partial sums of eight warps, twice.
        let shared_bytes = 2 * WARPS * 32 * 4;
        Ok(Configuration {
            knobs: vec![("QUERIES", queries)],
            pipeline: persistent(call, shared_bytes).into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
