//! Producers compute the metadata.

use msdeform::Numerics;

use super::rounds::{HOPPER, Roles, maps_per_level};
use super::{Rung, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::Knob;

/// See `kernels/ladder/fwd_warp_spec_meta.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_warp_spec_meta",
        "warp specialisation (003): warp_spec_meta",
        "warp_spec, and a sample is placed once, by a producer, its weights in shared memory",
        "what redundant metadata costs; the ratio of producers to consumers",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_warp_spec_meta.cu"),
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
};
