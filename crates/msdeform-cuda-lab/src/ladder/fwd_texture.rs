//! Layered textures with hardware bilinear filtering.

use std::sync::Arc;

use super::fwd_int8_value::grid_over_values;
use super::prelude::*;
use crate::preamble::LevelTextures;

const THREADS: u32 = 256;
/// Lanes of an item: four channels each.
const LANES: u32 = 8;

/// See `kernels/ladder/fwd_texture.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "analysis (000): texture memory",
    idea: "every level is a layered texture with four channels a texel: one filtered fetch per sample and lane",
    why: "the speed and the error of the hardware's bilinear filter, which has 8-bit fractions",
    // Fractions of 8 bits: see the page.
    numerics: Numerics::Loose { rel_l2: 1e-2 },
    claim: "20-30 % potential",
    supports: |call| LevelTextures.of(call).map(|_| ()),
    configure: |call, _| {
        let mut pipeline = Pipeline::default();
        pipeline.launch("fill", LaunchGeometry::linear(grid_over_values(call)?, THREADS));
        pipeline.prepared();
        let blocks = grid_over_items(call, u64::from(THREADS / LANES))?;
        pipeline.launch("", LaunchGeometry::linear(blocks, THREADS));
        Ok(Configuration {
            pipeline,
            preamble: Some(Arc::new(LevelTextures)),
            sampling_alignment: sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
