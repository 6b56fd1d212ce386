//! Deeper rings.

use super::rounds::{Roles, maps_per_level};
use super::prelude::*;

/// See `kernels/ladder/fwd_warp_spec_deep.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): warp_spec_deep",
    idea: "warp_spec_meta with three or four rounds of tiles in flight per consumer",
    why: "whether two stages were too few",
    claim: "+5-15 % expected",
    knobs: &[Knob {
        name: "STAGES",
        values: &[3, 4],
        meaning: "rounds of tiles that a consumer's ring holds",
    }],
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, knobs| {
        let stages = knobs.get("STAGES").unwrap_or(4);
        Ok(Roles { producers: 2, stages: stages as u32 }.configuration(call, 0, vec![("STAGES", stages)]))
    },
    ..PLAIN
};
