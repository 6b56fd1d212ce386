//! Two warps bring tiles, six compute.

use msdeform::Numerics;

use super::rounds::{HOPPER, Roles, maps_per_level};
use super::{Rung, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_warp_spec.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_warp_spec",
        "warp specialisation (003): warp_spec",
        "two producer warps bring tiles, six consumer warps compute; mbarriers between them, in a persistent loop",
        "what warps with roles bring where loads are irregular",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_warp_spec.cu"),
    claim: "correct, no figure",
    knobs: &[],
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        Ok(Roles { producers: 2, stages: 2 }.configuration(call, 0, Vec::new()))
    },
};
