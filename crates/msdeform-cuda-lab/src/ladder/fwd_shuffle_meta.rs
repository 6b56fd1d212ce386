//! Metadata once per warp.

use super::rounds::{WARPS, paired_sampling_alignment, warp_per_item};
use super::prelude::*;

/// See `kernels/ladder/fwd_shuffle_meta.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): shuffle_meta",
    idea: "a lane places one sample of its warp's query; shuffles carry offset and weights to the lanes that load it",
    why: "metadata once per warp, without shared memory",
    claim: "+3-8 % expected",
    configure: |call, _| {
        Ok(Configuration {
            pipeline: warp_per_item(call, WARPS, 0)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
