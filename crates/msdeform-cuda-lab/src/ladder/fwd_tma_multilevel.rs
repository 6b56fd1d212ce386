//! Two rounds of tiles in flight.

use std::sync::Arc;

use super::rounds::{
    MAPS_PER_LEVEL, ROUND_BYTES, WARPS, maps_per_level, paired_sampling_alignment,
    warp_per_item,
};
use super::prelude::*;

/// See `kernels/ladder/fwd_tma_multilevel.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): tma_multilevel",
    idea: "the next level's tiles are in flight while this one computes",
    why: "the gain of overlap without producer and consumer warps",
    claim: "+10-15 % expected",
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        // Two buffers of tiles with a barrier each, for every warp.
        let shared_bytes = WARPS * 2 * (ROUND_BYTES + 8);
        Ok(Configuration {
            pipeline: warp_per_item(call, WARPS, shared_bytes)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            preamble: Some(Arc::new(MAPS_PER_LEVEL)),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
