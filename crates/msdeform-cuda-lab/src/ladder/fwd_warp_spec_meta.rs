//! Producers compute the metadata.

use super::rounds::{Roles, maps_per_level};
use super::prelude::*;

/// See `kernels/ladder/fwd_warp_spec_meta.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): warp_spec_meta",
    idea: "warp_spec with metadata computed once, by a producer, and weights in shared memory",
    why: "the cost of redundant metadata, and the best ratio of producers to consumers",
    claim: "+5-10 % expected, hangs",
    knobs: &[Knob {
        name: "PRODUCERS",
        values: &[1, 2, 3, 4],
        meaning: "producer warps of eight; the others consume",
    }],
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, knobs| {
        let producers = knobs.get("PRODUCERS").unwrap_or(2);
        Ok(Roles { producers: producers as u32, stages: 2 }.configuration(call, 0, vec![("PRODUCERS", producers)]))
    },
    ..PLAIN
};
