//! Samples placed by a kernel of their own.

use msdeform::Numerics;

use super::lane_groups::{self, GROUP_LANES};
use super::{AMPERE, Rung, anything, sample_records, spec};
use msdeform_cuda::Pipeline;
use crate::sources::kernel_source;
use msdeform_cuda::variants::Configuration;

/// See `kernels/ladder/fwd_precomputed_weights.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_precomputed_weights",
        "guide (002), suite 2: precomputed weights",
        "a first kernel leaves every sample's offset and weights in memory",
        "whether placing samples is worth a pass over memory",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_precomputed_weights.cu"),
    claim: "+1.2 %",
    // The step before has blocks of one size.
    knobs: &[],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let mut configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        let mut pipeline = Pipeline::default();
        sample_records::write(&mut pipeline, &mut configuration.derived, call)?;
        pipeline.steps.append(&mut configuration.pipeline.steps);
        Ok(Configuration { pipeline, ..configuration })
    },
};
