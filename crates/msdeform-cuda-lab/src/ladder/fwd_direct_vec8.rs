//! The seeds' own kernel: vectors of eight channels, half arithmetic.

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;

/// See `kernels/ladder/fwd_direct_vec8.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "report (001): original",
    idea: "eight channels a thread, 16-byte loads past L1, coordinates and sums in half",
    why: "the baseline of the seeds' measurements, with its error",
    // A position of 128 and more is rounded to an eighth of a pixel: see the page.
    numerics: Numerics::Loose { rel_l2: 6e-2 },
    claim: "724 us, 1.00x",
    knobs: &[THREADS],
    configure: |call, knobs| {
        let threads = knobs.get(THREADS.name).unwrap_or(256);
        let launched = lane_groups::launch_of(call, threads, GROUP_LANES)?;
        Ok(Configuration { sampling_alignment: sampling_alignment(call), ..launched })
    },
    ..PLAIN
};
