//! Samples placed by a kernel of their own.

use super::lane_groups::{self, GROUP_LANES};
use super::prelude::*;
use super::sample_records;

/// See `kernels/ladder/fwd_precomputed_weights.cu`.
pub(super) const RUNG: Rung = Rung {
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
