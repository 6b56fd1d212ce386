//! The next query's inputs ahead of time.

use msdeform::Numerics;

use super::rounds::{paired_sampling_alignment, persistent};
use super::{AMPERE, Rung, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Configuration;

/// Four for each lane, of this query and of the next.
const MOST_SAMPLES: usize = 128;

/// See `kernels/ladder/fwd_prefetch_query.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_prefetch_query",
        "warp specialisation (003): prefetch_query",
        "shuffle_meta in a persistent loop that loads the next query's locations and weights ahead",
        "what the wait for locations costs",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_prefetch_query.cu"),
    claim: "no figure",
    knobs: &[],
    since: AMPERE,
    supports: |call| {
        let samples = call.problem.samples();
        if samples > MOST_SAMPLES {
            return Err(format!("{samples} samples; it keeps at most {MOST_SAMPLES} in registers"));
        }
        Ok(())
    },
    configure: |call, _| {
        Ok(Configuration {
            pipeline: persistent(call, 0).into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
};
