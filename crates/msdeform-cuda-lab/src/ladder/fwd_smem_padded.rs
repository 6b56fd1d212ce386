//! Small levels in shared memory with padded pixel rows.

use super::resident::{grid_over_shares, resident_levels, shares_of_a_slab};
use super::prelude::*;

const THREADS: u64 = 1024;
const ITEMS: u64 = THREADS / 4;

/// See `kernels/ladder/fwd_smem_padded.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "report (001): shared memory + padding",
    idea: "small levels in shared memory, pixels 32 + PADDING channels apart",
    why: "the cost of bank conflicts, and of avoiding them",
    claim: "971 us, 0.75x, no conflicts",
    knobs: &[Knob {
        name: "PADDING",
        values: &[0, 2, 8],
        meaning: "unused channels between pixels; the report's 2 allow loads of 4 bytes, 0 and 8 of 16",
    }],
    configure: |call, knobs| {
        let padding = knobs.get("PADDING").unwrap_or(2);
        let row_bytes = (CHANNELS as u64 + padding as u64) * 2;
        let capacity = call.device.shared_bytes_per_block as u64 / row_bytes;
        let (mask, pixels) = resident_levels(call, capacity)?;
        let shares = shares_of_a_slab(call, call.device.multiprocessors.into(), ITEMS);
        let blocks = grid_over_shares(call, shares, 1)?;
        let geometry = LaunchGeometry {
            shared_bytes: (pixels * row_bytes) as u32,
            ..LaunchGeometry::linear(blocks, THREADS as u32)
        };
        Ok(Configuration {
            knobs: vec![("PADDING", padding)],
            pipeline: geometry.into(),
            sampling_alignment: sampling_alignment(call),
            derived: Derived::of_count("resident_levels", mask)?,
            ..Configuration::default()
        })
    },
    ..PLAIN
};
