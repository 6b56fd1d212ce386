//! Values quantised to bytes, then gathered.

use super::prelude::*;
use msdeform_cuda::Region;

const THREADS: u32 = 256;
const BYTES_PER_PIXEL: usize = 32;

/// Blocks of a pass over all values: enough for every multiprocessor's threads, a multiple of the slabs.
pub(super) fn grid_over_values(call: &Call<'_>) -> Result<u32, String> {
    let slabs = (call.problem.batch() * call.problem.heads()) as u64;
    let blocks = (8 * u64::from(call.device.multiprocessors)).div_ceil(slabs) * slabs;
    i32::try_from(blocks)
        .map(|blocks| blocks as u32)
        .map_err(|_| format!("{slabs} slabs; a grid has at most 2^31 - 1 blocks"))
}

/// See `kernels/ladder/fwd_int8_value.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "analysis (000): INT8 values",
    idea: "values quantised to 8 bits per image and head, gathered as bytes, summed in fp32",
    why: "half the bytes of the gather, at the cost of quantising and its error",
    // Steps of largest / 127: see the page.
    numerics: Numerics::Loose { rel_l2: 2e-2 },
    claim: "20-30 % potential",
    configure: |call, _| {
        let slabs = call.problem.batch() * call.problem.heads();
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
