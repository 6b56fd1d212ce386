//! The guide's techniques combined.

use super::resident_levels::{self, SHARED_KB};
use super::prelude::*;
use super::sample_records;

/// See `kernels/ladder/fwd_ultra.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002): ultra",
    idea: "persistent, kept levels, stealing, precomputed weights, unrolling, L2 hints",
    why: "whether the gains of techniques add up",
    claim: "1.86 TFLOP/s, 3.7x",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let (mut pipeline, mut derived) = (Pipeline::default(), Derived::default());
        let units = resident_levels::reserve_units(call, &mut pipeline, &mut derived)?;
        let (configuration, geometry) = resident_levels::launch(call, knobs, 512, units)?;
        sample_records::write(&mut pipeline, &mut derived, call)?;
        pipeline.launch("", geometry);
        Ok(Configuration { pipeline, derived, ..configuration })
    },
    ..PLAIN
};
