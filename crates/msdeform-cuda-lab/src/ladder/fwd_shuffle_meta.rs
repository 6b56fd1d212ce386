//! Metadata once per warp.

use msdeform::Numerics;

use super::rounds::{WARPS, paired_sampling_alignment, warp_per_item};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Configuration;

/// See `kernels/ladder/fwd_shuffle_meta.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_shuffle_meta",
        "warp specialisation (003): shuffle_meta",
        "a lane places one sample of its warp's query; shuffles carry offset and weights to who loads it",
        "metadata once per warp, without shared memory",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_shuffle_meta.cu"),
    claim: "+3-8 % expected",
    knobs: &[],
    since: AMPERE,
    supports: anything,
    configure: |call, _| {
        Ok(Configuration {
            pipeline: warp_per_item(call, WARPS, 0)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
};
