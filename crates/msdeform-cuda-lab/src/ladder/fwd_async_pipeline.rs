//! Corners copied to shared memory ahead of their use.

use super::lane_groups::{self, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_async_pipeline.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 1: async pipeline",
    idea: "cp.async copies the next samples' corners while the current one is added up",
    why: "loads in flight without registers",
    claim: "no figure",
    knobs: &[
        THREADS,
        Knob { name: "STAGES", values: &[2, 4], meaning: "samples in flight" },
        Knob {
            name: "COPY_BYTES",
            values: &[8, 16],
            meaning: "bytes of one copy: 16 go past L1, 8 through it",
        },
    ],
    configure: |call, knobs| {
        let stages = knobs.get("STAGES").unwrap_or(2);
        // Four corners of 16 bytes.
        let mut configuration = lane_groups::launch_with_shared(call, knobs, 64 * stages as u64)?;
        configuration.knobs.push(("STAGES", stages));
        configuration.knobs.push(("COPY_BYTES", knobs.get("COPY_BYTES").unwrap_or(16)));
        Ok(configuration)
    },
    ..PLAIN
};
