//! Few queries: a warp for each (query, head), its samples spread over the lanes.

use msdeform::{DType, Direction, VariantSpec};

use super::chunked_sample::lanes_per_pixel;
use super::{Call, Configuration, Knob, KnobChoices, OURS, Specialise, Variant, offset_source};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_source;

/// See `kernels/fwd_split_gather.cu`.
pub(crate) static FWD_SPLIT_GATHER: Variant = Variant {
    takes_offsets: true,
    knobs: KNOBS,
    ..Variant::new(&SPEC, kernel_source!("fwd_split_gather.cu"), supports, configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "fwd_split_gather",
    direction: Direction::Forward,
    idea: "a warp per (query, head): all samples in flight at once, a halving shuffle tree adds them",
    why: "300 queries still fill every SM, and the latency is two trips to memory",
    ..OURS
};

static KNOBS: &[Knob] = &[
    Knob { name: "WARPS", values: &[1, 2, 4, 8], meaning: "warps of a block" },
    Knob { name: "ROUNDS", values: &[1, 2, 4], meaning: "samples a lane has in flight at once" },
];

fn supports(call: &Call<'_>) -> Result<(), String> {
    offset_source::check_fast(call)?;
    lanes_per_pixel(call, 2).map(|_| ())
}

fn configure(call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
    lanes_per_pixel(call, 2)?;
    let rounds_default = if call.problem.dtype() == DType::F32 { 4 } else { 2 };
    let warps = knobs.get("WARPS").unwrap_or(4);
    let rounds = knobs.get("ROUNDS").unwrap_or(rounds_default);
    // The kernel strides over what a grid cannot hold.
    let blocks = call.rows().div_ceil(warps as u64).min(i32::MAX as u64);
    let mut derived = Derived::default();
    offset_source::derive(call, true, &mut derived)?;
    Ok(Configuration {
        specialise: Specialise::ModelAndHeads,
        knobs: vec![("WARPS", warps), ("ROUNDS", rounds)],
        pipeline: LaunchGeometry {
            overlaps: call.device.overlaps_launches,
            ..LaunchGeometry::linear(blocks as u32, 32 * warps as u32)
        }
        .into(),
        constants: offset_source::constants(call),
        derived,
        ..offset_source::aligned(call, call.problem.sampling_dtype().size_bytes())
    })
}
