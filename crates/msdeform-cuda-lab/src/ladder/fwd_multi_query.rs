//! Several queries share a block.

use msdeform::Numerics;

use super::rounds::{WARPS, paired_sampling_alignment, persistent};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::{Configuration, Knob};

/// See `kernels/ladder/fwd_multi_query.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_multi_query",
        "warp specialisation (003): multi_query",
        "a block takes several queries per turn, whose warps share the samples and one barrier",
        "what one query per block leaves idle",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_multi_query.cu"),
    claim: "no figure",
    knobs: &[Knob {
        name: "QUERIES",
        values: &[1, 2, 4],
        meaning: "queries of a block of eight warps",
    }],
    since: AMPERE,
    supports: anything,
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
};
