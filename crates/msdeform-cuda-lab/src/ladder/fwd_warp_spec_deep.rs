//! Deeper rings.

use msdeform::Numerics;

use super::rounds::{HOPPER, Roles, maps_per_level};
use super::{Rung, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Knob;

/// See `kernels/ladder/fwd_warp_spec_deep.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_warp_spec_deep",
        "warp specialisation (003): warp_spec_deep",
        "warp_spec_meta with three or four rounds of tiles under way per consumer",
        "whether two stages were too few",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_warp_spec_deep.cu"),
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
};
