//! The analysis (000): units of the GPU that gathers leave idle, and orders of the queries.

use std::sync::Arc;

use msdeform_cuda::Region;
use msdeform_cuda::variants::chunked_sample::paired_sampling_alignment;

use super::prelude::*;
use crate::preamble::LevelTextures;

/// Threads of a block that passes over values or gathers them in another format.
const THREADS: u32 = 256;

/// Items of a warp, one after the other.
const ITEMS_PER_WARP: u64 = 8;

pub(super) const FWD_TENSOR_CORE: Rung = Rung {
    origin: "analysis (000): tensor cores",
    idea: "corners times weights as m16n8k16 products: k is (corner, parity), A is the loaded registers",
    why: "the analysis calls tensor cores not applicable",
    claim: "\"not applicable\"",
    knobs: &[
        Knob {
            name: "SPLIT",
            values: &[0, 1],
            meaning: "1: weights as the sum of two halves, twice the products",
        },
        Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" },
    ],
    configure: |call, knobs| {
        let split = knobs.get("SPLIT").unwrap_or(0);
        let warps = knobs.get("WARPS").unwrap_or(4);
        let blocks = grid_over_items(call, warps as u64 * ITEMS_PER_WARP)?;
        Ok(Configuration {
            knobs: vec![("SPLIT", split), ("WARPS", warps)],
            pipeline: LaunchGeometry::linear(blocks, 32 * warps as u32).into(),
            sampling_alignment: call.problem.sampling_dtype().size_bytes(),
            ..Configuration::default()
        })
    },
    ..PLAIN
};

/// Lanes of an item of textures: four channels each.
const TEXTURE_LANES: u32 = 8;

pub(super) const FWD_TEXTURE: Rung = Rung {
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
        let blocks = grid_over_items(call, u64::from(THREADS / TEXTURE_LANES))?;
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

const GATHER_THREADS: u32 = 128;
/// Lanes that average an item's locations.
const KEY_LANES: u32 = 8;
const SORT_THREADS: u32 = 1024;
/// A counter per key, a sum per warp.
const SORT_SHARED_BYTES: u32 = (64 * 64 + SORT_THREADS / 32) * 4;

pub(super) const FWD_SPATIAL_SORT: Rung = Rung {
    origin: "analysis (000): better cache utilization",
    idea: "queries of a slab sorted along a Morton or Hilbert curve of their mean location, then gathered",
    why: "the reuse in L1 that an order can gain, and the cost of finding the order",
    claim: "10-15 % potential",
    knobs: &[Knob { name: "CURVE", values: &[0, 1], meaning: "0: Morton, 1: Hilbert" }],
    configure: |call, knobs| {
        let curve = knobs.get("CURVE").unwrap_or(1);
        let items = items(call) as usize;
        let mut pipeline = Pipeline::default();
        let mut derived = Derived::default();
        derived.size("order_at", pipeline.reserve(items * 4));
        derived.size("keys_at", pipeline.reserve(items * 2));
        let keys = grid_over_items(call, u64::from(GATHER_THREADS / KEY_LANES))?;
        pipeline.launch("keys", LaunchGeometry::linear(keys, GATHER_THREADS));
        let sort = LaunchGeometry::linear(slabs(call) as u32, SORT_THREADS);
        pipeline.launch("sort", LaunchGeometry { shared_bytes: SORT_SHARED_BYTES, ..sort });
        pipeline.prepared();
        let gather = grid_over_items(call, u64::from(GATHER_THREADS / 4))?;
        pipeline.launch("", LaunchGeometry::linear(gather, GATHER_THREADS));
        Ok(Configuration {
            knobs: vec![("CURVE", curve)],
            pipeline,
            // The keys read both coordinates of a location at once.
            sampling_alignment: paired_sampling_alignment(call),
            derived,
            ..Configuration::default()
        })
    },
    ..PLAIN
};

const BYTES_PER_PIXEL: usize = 32;

/// Blocks of a pass over all values: enough for every multiprocessor's threads, a multiple of the slabs.
fn grid_over_values(call: &Call<'_>) -> Result<u32, String> {
    grid((8 * u64::from(call.device.multiprocessors)).div_ceil(slabs(call)) * slabs(call))
}

pub(super) const FWD_INT8_VALUE: Rung = Rung {
    origin: "analysis (000): INT8 values",
    idea: "values quantised to 8 bits per image and head, gathered as bytes, summed in fp32",
    why: "half the bytes of the gather, at the cost of quantising and its error",
    // Steps of largest / 127: see the page.
    numerics: Numerics::Loose { rel_l2: 2e-2 },
    claim: "20-30 % potential",
    configure: |call, _| {
        let slabs = slabs(call) as usize;
        let spatial = call.problem.spatial();
        let mut pipeline = Pipeline::default();
        let offset = pipeline.reserve(slabs * 4);
        let mut derived = Derived::of_count("slab_pixels", spatial)?;
        derived.size("largest_at", offset);
        derived.size("bytes_at", pipeline.reserve(slabs * spatial * BYTES_PER_PIXEL));
        let over_values = LaunchGeometry::linear(grid_over_values(call)?, THREADS);
        pipeline.zero(Region::Workspace { offset, bytes: slabs * 4 });
        pipeline.launch("largest", over_values);
        pipeline.launch("quantise", over_values);
        pipeline.prepared();
        let blocks = grid_over_items(call, u64::from(THREADS / 2))?;
        pipeline.launch("", LaunchGeometry::linear(blocks, THREADS));
        Ok(Configuration {
            pipeline,
            sampling_alignment: sampling_alignment(call),
            derived,
            ..Configuration::default()
        })
    },
    ..PLAIN
};
