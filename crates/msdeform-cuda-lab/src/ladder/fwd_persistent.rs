//! One block per multiprocessor, levels in shared memory, stolen units.

use super::resident_levels::{self, SHARED_KB};
use super::prelude::*;

/// See `kernels/ladder/fwd_persistent.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002): persistent",
    idea: "one block per SM keeps the small levels' pixels and steals queries",
    why: "coarse levels never leave the SM, and all SMs end together",
    claim: "1.8 TFLOP/s, 3.6x",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let (mut pipeline, mut derived) = (Pipeline::default(), Derived::default());
        let units = resident_levels::reserve_units(call, &mut pipeline, &mut derived)?;
        let (configuration, geometry) = resident_levels::launch(call, knobs, 1024, units)?;
        pipeline.launch("", geometry);
        Ok(Configuration { pipeline, derived, ..configuration })
    },
    ..PLAIN
};
