//! The combination.

use msdeform::Numerics;

use super::resident_levels::{self, SHARED_KB};
use super::{AMPERE, Rung, anything, sample_records, spec};
use msdeform_cuda::{Derived, Pipeline};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Configuration;

/// See `kernels/ladder/fwd_ultra.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_ultra",
        "guide (002): ultra",
        "persistent, kept levels, stealing, precomputed weights, unrolling, L2 hints",
        "whether techniques add up",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_ultra.cu"),
    claim: "1.86 TFLOP/s, 3.7x",
    knobs: &[SHARED_KB],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let (mut pipeline, mut derived) = (Pipeline::default(), Derived::default());
        let units = resident_levels::reserve_units(call, &mut pipeline, &mut derived)?;
        let (configuration, geometry) = resident_levels::launch(call, knobs, 512, units)?;
        sample_records::write(&mut pipeline, &mut derived, call)?;
        pipeline.launch_of_whole("", geometry);
        Ok(Configuration { pipeline, derived, ..configuration })
    },
};
