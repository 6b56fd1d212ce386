//! The next query's inputs ahead of time.

use super::rounds::{paired_sampling_alignment, persistent};
use super::prelude::*;

/// Four for each lane, for the current query and for the next.
const MOST_SAMPLES: usize = 128;

/// See `kernels/ladder/fwd_prefetch_query.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): prefetch_query",
    idea: "shuffle_meta in a persistent loop that loads the next query's locations and weights ahead",
    why: "the cost of the wait for locations",
    claim: "no figure",
    supports: |call| {
        let samples = call.problem.samples();
        if samples > MOST_SAMPLES {
            return Err(format!("{samples} samples in a row; registers hold at most {MOST_SAMPLES}"));
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
    ..PLAIN
};
