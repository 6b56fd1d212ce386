//! The ladder: every technique of the seed documents as a kernel of its own, in their setting (fp16, 32
//! channels, head-major).
//!
//! A rung is `kernels/ladder/<id>.cu`, `<id>.rs` here, a page, and its line in the list below.

use msdeform::{DType, DeviceKind, Direction, Numerics, ValueLayout, VariantSpec};

use msdeform_cuda::variants::chunked_sample::lanes_per_pixel;
use msdeform_cuda::variants::{Call, Configuration, Knob, KnobChoices, Variant};

use crate::sources::{SourceFile, headers};

/// Imports of most rungs.
mod prelude {
    pub(super) use super::{CHANNELS, HOPPER, PLAIN, Rung, grid_over_items, items};
    pub(super) use msdeform::Numerics;
    pub(super) use msdeform_cuda::LaunchGeometry;
    pub(super) use msdeform_cuda::variants::chunked_sample::sampling_alignment;
    pub(super) use msdeform_cuda::variants::{Call, Configuration, Knob};
    pub(super) use msdeform_cuda::{Derived, Pipeline};
}

mod lane_groups;
mod resident_levels;
mod sample_records;

macro_rules! rungs {
    ($($id:ident),* $(,)?) => {
        $(mod $id;)*
        /// Every rung, in the order of the seed documents.
        pub(crate) const RUNGS: &[&dyn Variant] = &[$(&NamedRung {
            spec: &$id::RUNG.spec(stringify!($id)),
            source: SourceFile {
                name: concat!("ladder/", stringify!($id), ".cu"),
                text: include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"), "/kernels/ladder/", stringify!($id), ".cu"
                )),
            },
            rung: &$id::RUNG,
        }),*];

        /// The figure that the seed document states for its own version of a rung.
        #[must_use]
        pub fn claim(id: &str) -> Option<&'static str> {
            match id {
                $(stringify!($id) => Some($id::RUNG.claim),)*
                "fwd_original" => Some(crate::fwd_original::CLAIM),
                _ => None,
            }
        }
    };
}

mod resident;
mod rounds;

rungs![
    // Guide (002).
    fwd_simple,
    fwd_optimized,
    fwd_persistent,
    fwd_persistent_full,
    fwd_channel_split,
    fwd_ultra,
    // Its first suite.
    fwd_warp_shuffle,
    fwd_async_pipeline,
    fwd_register_blocking,
    fwd_l2_policy,
    fwd_vector_loads,
    // Its second suite.
    fwd_smem_metadata,
    fwd_work_redistribution,
    fwd_loop_unroll,
    fwd_precomputed_weights,
    fwd_l2_hints,
    fwd_mixed_precision,
    // Report (001).
    fwd_direct_vec8,
    fwd_distributed,
    fwd_distributed_cluster,
    fwd_smem_padded,
    fwd_async_double_buffer,
    // Warp specialisation (003).
    fwd_warp_spec,
    fwd_warp_spec_meta,
    fwd_warp_spec_flags,
    fwd_warp_spec_deep,
    fwd_shuffle_meta,
    fwd_prefetch_query,
    fwd_multi_query,
    fwd_fma_weights,
    fwd_tma_multilevel,
    // Tiles (004).
    fwd_tile_2x2,
    fwd_tma_tile,
    // Analysis (000).
    fwd_tensor_core,
    fwd_texture,
    fwd_spatial_sort,
    fwd_int8_value,
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
    supports: fn(&Call<'_>) -> Result<(), String>,
    configure: fn(&Call<'_>, &KnobChoices) -> Result<Configuration, String>,
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
            direction: Direction::Forward,
            device: DeviceKind::Cuda,
            dtypes: &[DType::F16],
            layouts: &[ValueLayout::HeadMajor, ValueLayout::HeadMajorPadded],
            origin: self.origin,
            idea: self.idea,
            why: self.why,
            numerics: self.numerics,
            rung: true,
        }
    }
}

/// A rung as a variant.
struct NamedRung {
    spec: &'static VariantSpec,
    source: SourceFile,
    rung: &'static Rung,
}

/// Ampere: every instruction of a plain rung.
const AMPERE: (u32, u32) = (8, 0);

/// Hopper: clusters, the copy engine, and barriers that count bytes.
const HOPPER: (u32, u32) = (9, 0);

impl Variant for NamedRung {
    fn spec(&self) -> &'static VariantSpec {
        self.spec
    }

    fn source(&self) -> SourceFile {
        self.source
    }

    fn headers(&self) -> &'static [SourceFile] {
        headers()
    }

    fn knobs(&self) -> &'static [Knob] {
        self.rung.knobs
    }

    fn supports(&self, call: &Call<'_>) -> Result<(), String> {
        lanes_per_pixel(call, 2)?;
        let (major, minor) = call.device.compute_capability;
        let since = self.rung.since;
        if (major, minor) < since {
            return Err(format!(
                "the GPU has compute capability {major}.{minor}; the kernel's instructions need {}.{} or later",
                since.0, since.1
            ));
        }
        if call.problem.channels() != CHANNELS {
            return Err(format!(
                "{} channels; rungs are compiled for {CHANNELS}",
                call.problem.channels()
            ));
        }
        (self.rung.supports)(call)
    }

    fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
        (self.rung.configure)(call, knobs)
    }
}

/// Items: one query of one slab each.
fn items(call: &Call<'_>) -> u64 {
    call.rows()
}

/// A grid with `items_per_block` items in each block.
fn grid_over_items(call: &Call<'_>, items_per_block: u64) -> Result<u32, String> {
    let blocks = items(call).div_ceil(items_per_block);
    i32::try_from(blocks).map(|blocks| blocks as u32).map_err(|_| {
        format!(
            "{} queries of all heads and images take {blocks} blocks, more than a grid has",
            items(call)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_has_its_texts() {
        for rung in RUNGS {
            let VariantSpec { id, origin, idea, why, .. } = rung.spec();
            let words = [*origin, *idea, *why, claim(id).unwrap()];
            assert!(words.iter().all(|word| !word.is_empty()), "{id}: {words:?}");
        }
    }
}
