//! Weights as fused multiply-adds.

use super::rounds::{WARPS, paired_sampling_alignment, warp_per_item};
use super::prelude::*;

/// See `kernels/ladder/fwd_fma_weights.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "warp specialisation (003): fma_weights",
    idea: "bilinear weights with the attention weight folded in, every step an fma",
    why: "the cost of the arithmetic of weights",
    claim: "no figure",
    knobs: &[Knob { name: "FMA", values: &[0, 1], meaning: "0 is the textbook form" }],
    configure: |call, knobs| {
        Ok(Configuration {
            knobs: vec![("FMA", knobs.get("FMA").unwrap_or(1))],
            pipeline: warp_per_item(call, WARPS, 0)?.into(),
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
