//! A flag per sample.

use msdeform::Numerics;

use super::rounds::{HOPPER, Roles, maps_per_level};
use super::{Rung, spec};
use crate::sources::kernel_source;

/// A word per buffer and sample, and one per consumer.
const FLAG_BYTES: u32 = (6 * 2 * 8 + 6) * 4;

/// See `kernels/ladder/fwd_warp_spec_flags.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_warp_spec_flags",
        "warp specialisation (003): warp_spec_flags",
        "warp_spec_meta with a flag per sample: release and acquire, bounded spins",
        "whether flags are cheaper than barriers, done right",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_warp_spec_flags.cu"),
    claim: "deadlock, abandoned",
    knobs: &[],
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        Ok(Roles { producers: 2, stages: 2 }.configuration(call, FLAG_BYTES, Vec::new()))
    },
};
