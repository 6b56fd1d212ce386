//! Weights as fused multiply-adds.

use msdeform::Numerics;

use super::rounds::{WARPS, paired_sampling_alignment, warp_per_item};
use super::{AMPERE, Rung, anything, spec};
use crate::sources::kernel_source;
use msdeform_cuda::variants::{Configuration, Knob};

/// See `kernels/ladder/fwd_fma_weights.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_fma_weights",
        "warp specialisation (003): fma_weights",
        "bilinear weights with the attention weight folded in, every step an fma",
        "what the arithmetic of weights costs",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_fma_weights.cu"),
    claim: "no figure",
    knobs: &[Knob { name: "FMA", values: &[0, 1], meaning: "0 is the textbook form" }],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        Ok(Configuration {
            knobs: vec![("FMA", knobs.get("FMA").unwrap_or(1))],
            pipeline: warp_per_item(call, WARPS, 0)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
};
