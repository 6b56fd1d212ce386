//! One block per multiprocessor, levels in shared memory, stolen units.

use msdeform::Numerics;

use super::resident_levels::{self, SHARED_KB};
use super::{AMPERE, Rung, anything, spec};
use msdeform_cuda::{Derived, Pipeline};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Configuration;

/// See `kernels/ladder/fwd_persistent.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_persistent",
        "guide (002): persistent",
        "one block per SM keeps the small levels' pixels and steals queries",
        "coarse levels never leave the SM, no idle tail",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_persistent.cu"),
    claim: "1.8 TFLOP/s, 3.6x",
    knobs: &[SHARED_KB],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let (mut pipeline, mut derived) = (Pipeline::default(), Derived::default());
        let units = resident_levels::reserve_units(call, &mut pipeline, &mut derived)?;
        let (configuration, geometry) = resident_levels::launch(call, knobs, 1024, units)?;
        pipeline.launch_of_whole("", geometry);
        Ok(Configuration { pipeline, derived, ..configuration })
    },
};
