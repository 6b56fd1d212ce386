//! Corners copied to shared memory ahead of their use.

use msdeform::Numerics;

use super::lane_groups::{self, THREADS};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Knob;

/// See `kernels/ladder/fwd_async_pipeline.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_async_pipeline",
        "guide (002), suite 1: async pipeline",
        "cp.async brings the next samples' corners while this one is added",
        "loads in flight without registers",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_async_pipeline.cu"),
    claim: "no figure",
    knobs: &[
        THREADS,
        Knob { name: "STAGES", values: &[2, 4], meaning: "samples under way" },
        Knob {
            name: "COPY_BYTES",
            values: &[8, 16],
            meaning: "bytes of one copy: 16 go past L1, 8 through it",
        },
    ],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let stages = knobs.get("STAGES").unwrap_or(2);
        // Four corners of 16 bytes.
        let mut configuration = lane_groups::launch_with_shared(call, knobs, 64 * stages as u64)?;
        configuration.knobs.push(("STAGES", stages));
        configuration.knobs.push(("COPY_BYTES", knobs.get("COPY_BYTES").unwrap_or(16)));
        Ok(configuration)
    },
};
