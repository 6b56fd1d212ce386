//! Two warps bring tiles, six compute.

use super::rounds::{Roles, maps_per_level};
use super::prelude::*;

/// See `kernels/ladder/fwd_warp_spec.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): warp_spec",
    idea: "two producer warps bring tiles, six consumer warps compute; mbarriers between them, in a persistent loop",
    why: "the gain of warps with roles for irregular loads",
    claim: "correct, no figure",
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        Ok(Roles { producers: 2, stages: 2 }.configuration(call, 0, Vec::new()))
    },
    ..PLAIN
};
