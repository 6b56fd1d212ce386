//! What the variants that include `grad_output_rows.cuh` have in common.

use msdeform::{BackwardCall, OutputStrides, Problem};

use super::{Call, Constant, KnobChoices};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::pipeline::Pipeline;

pub(super) const PACK: Constant = Constant {
    name: "PACK",
    values: &[0, 1],
    meaning: "the output's gradient has no packed rows, and is written out as such first",
};

const CHUNK_BYTES: usize = 16;
const PACK_THREADS: u32 = 256;

/// The step pack, where it is needed.
#[derive(Clone, Copy)]
pub(super) struct PackStep {
    packs: bool,
}

impl PackStep {
    pub(super) fn of(call: &Call<'_>, knobs: &KnobChoices) -> Result<Self, String> {
        let is_packed =
            |backward: BackwardCall| has_packed_rows(call.problem, &backward.grad_output);
        let needed = !call.backward.is_none_or(is_packed);
        let packs = knobs.get(PACK.name).map_or(needed, |value| value == 1);
        if needed && !packs {
            return Err(
                "PACK=0, but rows of `grad_output` are not packed or not aligned; leave PACK out"
                    .to_owned(),
            );
        }
        Ok(Self { packs })
    }

    /// Reserves the packed rows and launches the step.
    pub(super) fn queue(self, problem: &Problem, pipeline: &mut Pipeline, derived: &mut Derived) {
        let bytes = problem.output_len() * problem.dtype().size_bytes();
        derived.size("rows_at", if self.packs { pipeline.reserve(bytes) } else { 0 });
        if self.packs {
            // The kernel strides over what a grid cannot hold.
            let blocks = (bytes / CHUNK_BYTES).div_ceil(PACK_THREADS as usize).min(1 << 20);
            let geometry = LaunchGeometry::linear(blocks as u32, PACK_THREADS);
            pipeline.launch("pack", geometry);
        }
    }

    pub(super) fn constant(self) -> (&'static str, i64) {
        (PACK.name, i64::from(self.packs))
    }
}

/// Whether every row is 16-byte chunks that lie one behind the other.
fn has_packed_rows(problem: &Problem, strides: &OutputStrides) -> bool {
    let chunk = (CHUNK_BYTES / problem.dtype().size_bytes()) as i64;
    let outer = [strides.batch, strides.query, strides.head];
    strides.channel == 1 && outer.iter().all(|stride| stride % chunk == 0)
}

/// Refuses rows that lie too far apart.
pub(super) fn check(call: &Call<'_>) -> Result<(), String> {
    let problem = call.problem;
    let Some(backward) = call.backward else { return Ok(()) };
    let chunk = (CHUNK_BYTES / problem.dtype().size_bytes()) as u64;
    let packed = (problem.heads() * problem.channels()) as u64;
    let between = backward.grad_output.query.unsigned_abs().max(packed) / chunk;
    // Offsets are counted in chunks, in 32 bits.
    if between.saturating_mul(problem.queries() as u64) >= 1 << 32 {
        return Err("`grad_output` of an image spans 64 GiB or more; it takes less".to_owned());
    }
    Ok(())
}
