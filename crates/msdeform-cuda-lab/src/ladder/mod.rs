//! The ladder: every technique of the seed documents as a kernel of its own, in their setting (fp16, 32
//! channels, head-major).
//!
//! A rung is `kernels/ladder/<id>.cu`, its entry in the file of its seed document here, a page, and its line in the list
//! below.

use msdeform::{DType, Numerics, ValueLayout, VariantSpec};

use msdeform_cuda::kernel_source;
use msdeform_cuda::variants::chunked_sample::lanes_per_pixel;
use msdeform_cuda::variants::{Call, Configure, Knob, OURS, Supports, Variant};

use crate::sources::headers;

/// Imports of the rungs.
mod prelude {
    pub(super) use super::{
        CHANNELS, HOPPER, PLAIN, Rung, check_capability, check_shared_bytes, grid, grid_over_items,
        items, slabs,
    };
    pub(super) use msdeform::Numerics;
    pub(super) use msdeform_cuda::LaunchGeometry;
    pub(super) use msdeform_cuda::variants::chunked_sample::sampling_alignment;
    pub(super) use msdeform_cuda::variants::{Call, Configuration, Knob};
    pub(super) use msdeform_cuda::{Derived, Pipeline};
}

mod analysis;
mod guide;
mod lane_groups;
mod report;
mod resident;
mod resident_levels;
mod rounds;
mod sample_records;
mod tiles;
mod warp_specialisation;

macro_rules! rungs {
    ($($id:literal => $rung:path),* $(,)?) => {
        /// Every rung, in the order of the seed documents.
        pub(crate) const RUNGS: &[&Variant] = &[$(&Variant {
            headers,
            knobs: $rung.knobs,
            ..Variant::new(
                &$rung.spec($id),
                kernel_source!(concat!("ladder/", $id, ".cu")),
                |call| $rung.check(call),
                $rung.configure,
            )
        }),*];

        /// The figure that the seed document states for its own version of a rung.
        pub fn claim(id: &str) -> Option<&'static str> {
            match id {
                $($id => Some($rung.claim),)*
                "fwd_original" => Some(crate::fwd_original::CLAIM),
                _ => None,
            }
        }
    };
}

rungs![
    // Guide (002).
    "fwd_simple" => guide::FWD_SIMPLE,
    "fwd_optimized" => guide::FWD_OPTIMIZED,
    "fwd_persistent" => guide::FWD_PERSISTENT,
    "fwd_persistent_full" => guide::FWD_PERSISTENT_FULL,
    "fwd_channel_split" => guide::FWD_CHANNEL_SPLIT,
    "fwd_ultra" => guide::FWD_ULTRA,
    // Its first suite.
    "fwd_warp_shuffle" => guide::FWD_WARP_SHUFFLE,
    "fwd_async_pipeline" => guide::FWD_ASYNC_PIPELINE,
    "fwd_register_blocking" => guide::FWD_REGISTER_BLOCKING,
    "fwd_l2_policy" => guide::FWD_L2_POLICY,
    "fwd_vector_loads" => guide::FWD_VECTOR_LOADS,
    // Its second suite.
    "fwd_smem_metadata" => guide::FWD_SMEM_METADATA,
    "fwd_work_redistribution" => guide::FWD_WORK_REDISTRIBUTION,
    "fwd_loop_unroll" => guide::FWD_LOOP_UNROLL,
    "fwd_precomputed_weights" => guide::FWD_PRECOMPUTED_WEIGHTS,
    "fwd_l2_hints" => guide::FWD_L2_HINTS,
    "fwd_mixed_precision" => guide::FWD_MIXED_PRECISION,
    // Report (001).
    "fwd_direct_vec8" => report::FWD_DIRECT_VEC8,
    "fwd_distributed" => report::FWD_DISTRIBUTED,
    "fwd_distributed_cluster" => report::FWD_DISTRIBUTED_CLUSTER,
    "fwd_smem_padded" => report::FWD_SMEM_PADDED,
    "fwd_async_double_buffer" => report::FWD_ASYNC_DOUBLE_BUFFER,
    // Warp specialisation (003).
    "fwd_warp_spec" => warp_specialisation::FWD_WARP_SPEC,
    "fwd_warp_spec_meta" => warp_specialisation::FWD_WARP_SPEC_META,
    "fwd_warp_spec_flags" => warp_specialisation::FWD_WARP_SPEC_FLAGS,
    "fwd_warp_spec_deep" => warp_specialisation::FWD_WARP_SPEC_DEEP,
    "fwd_shuffle_meta" => warp_specialisation::FWD_SHUFFLE_META,
    "fwd_prefetch_query" => warp_specialisation::FWD_PREFETCH_QUERY,
    "fwd_multi_query" => warp_specialisation::FWD_MULTI_QUERY,
    "fwd_fma_weights" => warp_specialisation::FWD_FMA_WEIGHTS,
    "fwd_tma_multilevel" => warp_specialisation::FWD_TMA_MULTILEVEL,
    // Tiles (004).
    "fwd_tile_2x2" => tiles::FWD_TILE_2X2,
    "fwd_tma_tile" => tiles::FWD_TMA_TILE,
    // Analysis (000).
    "fwd_tensor_core" => analysis::FWD_TENSOR_CORE,
    "fwd_texture" => analysis::FWD_TEXTURE,
    "fwd_spatial_sort" => analysis::FWD_SPATIAL_SORT,
    "fwd_int8_value" => analysis::FWD_INT8_VALUE,
];

/// Channels of a rung.
const CHANNELS: usize = 32;

/// The parts in which rungs differ. A rung has the name of its file and of its kernel.
struct Rung {
    origin: &'static str,
    idea: &'static str,
    why: &'static str,
    numerics: Numerics,
    claim: &'static str,
    knobs: &'static [Knob],
    /// The first compute capability that has its instructions.
    since: (u32, u32),
    /// Further calls that it refuses.
    supports: Supports,
    configure: Configure,
}

/// Defaults of most rungs; each adds its texts and its launch.
const PLAIN: Rung = Rung {
    origin: "",
    idea: "",
    why: "",
    numerics: Numerics::Contract,
    claim: "",
    knobs: &[],
    since: AMPERE,
    supports: |_| Ok(()),
    configure: |_, _| Err("this rung has no launch configuration".to_owned()),
};

impl Rung {
    const fn spec(&self, id: &'static str) -> VariantSpec {
        VariantSpec {
            id,
            dtypes: &[DType::F16],
            layouts: &[ValueLayout::HeadMajor, ValueLayout::HeadMajorPadded],
            origin: self.origin,
            idea: self.idea,
            why: self.why,
            numerics: self.numerics,
            rung: true,
            ..OURS
        }
    }

    fn check(&self, call: &Call<'_>) -> Result<(), String> {
        lanes_per_pixel(call, 2)?;
        check_capability(call, self.since, "the kernel's instructions need")?;
        if call.problem.channels() != CHANNELS {
            return Err(format!(
                "{} channels; rungs are compiled for {CHANNELS}",
                call.problem.channels()
            ));
        }
        (self.supports)(call)
    }
}

/// Ampere: every instruction of a plain rung.
const AMPERE: (u32, u32) = (8, 0);

/// Hopper: clusters, the copy engine, and barriers that count bytes.
const HOPPER: (u32, u32) = (9, 0);

/// Refuses a GPU without something that came with a compute capability.
fn check_capability(call: &Call<'_>, since: (u32, u32), what_needs: &str) -> Result<(), String> {
    let (major, minor) = call.device.compute_capability;
    if (major, minor) < since {
        let (since_major, since_minor) = since;
        return Err(format!(
            "the GPU has compute capability {major}.{minor}; {what_needs} {since_major}.{since_minor} or later"
        ));
    }
    Ok(())
}

/// Refuses a block with more shared memory than the GPU has for one.
fn check_shared_bytes(call: &Call<'_>, bytes: u64) -> Result<(), String> {
    let most = call.device.shared_bytes_per_block;
    if bytes > most as u64 {
        return Err(format!(
            "{bytes} bytes of shared memory for a block; this GPU has at most {most}"
        ));
    }
    Ok(())
}

/// Slabs: one head of one image each.
fn slabs(call: &Call<'_>) -> u64 {
    (call.problem.batch() * call.problem.heads()) as u64
}

/// Items: one query of one slab each.
fn items(call: &Call<'_>) -> u64 {
    call.rows()
}

/// A grid of so many blocks.
fn grid(blocks: u64) -> Result<u32, String> {
    let fits = i32::try_from(blocks).map(|blocks| blocks as u32);
    fits.map_err(|_| format!("the call takes {blocks} blocks; a grid has at most 2^31 - 1"))
}

/// A grid with `items_per_block` items in each block.
fn grid_over_items(call: &Call<'_>, items_per_block: u64) -> Result<u32, String> {
    grid(items(call).div_ceil(items_per_block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_has_its_texts() {
        for rung in RUNGS {
            let VariantSpec { id, origin, idea, why, .. } = rung.spec;
            let words = [*origin, *idea, *why, claim(id).unwrap()];
            assert!(words.iter().all(|word| !word.is_empty()), "{id}: {words:?}");
        }
    }
}
