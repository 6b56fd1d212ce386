//! A flag per sample.

use super::rounds::{Roles, maps_per_level};
use super::prelude::*;

/// A word per buffer and sample, and one per consumer.
const FLAG_BYTES: u32 = (6 * 2 * 8 + 6) * 4;

/// See `kernels/ladder/fwd_warp_spec_flags.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): warp_spec_flags",
    idea: "warp_spec_meta with a flag per sample: release and acquire, bounded spins",
    why: "whether correct flags are cheaper than barriers",
    claim: "deadlock, abandoned",
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        Ok(Roles { producers: 2, stages: 2 }.configuration(call, FLAG_BYTES, Vec::new()))
    },
    ..PLAIN
};
