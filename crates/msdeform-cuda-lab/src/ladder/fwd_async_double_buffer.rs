//! cp.async into two buffers.

use super::prelude::*;

const THREADS: u32 = 128;
const ITEMS: u32 = THREADS / 4;
const PIXEL_BYTES: u32 = 64;

/// See `kernels/ladder/fwd_async_double_buffer.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "report (001): TMA optimized",
    idea: "cp.async copies the next samples' corners into one padded buffer while the other is added up",
    why: "whether asynchronous copies hide more latency than loads that are issued early",
    claim: "928 us, 0.78x",
    knobs: &[
        Knob { name: "POINTS", values: &[4, 8], meaning: "samples of a stage" },
        Knob { name: "PADDING", values: &[0, 32], meaning: "channels after the tile of an item" },
    ],
    configure: |call, knobs| {
        let points = knobs.get("POINTS").unwrap_or(4);
        let padding = knobs.get("PADDING").unwrap_or(32);
        let tile_bytes = points as u32 * 4 * PIXEL_BYTES + padding as u32 * 2;
        let shared_bytes = 2 * ITEMS * tile_bytes;
        if shared_bytes as usize > call.device.shared_bytes_per_block {
            return Err(format!(
                "{shared_bytes} bytes of shared memory for a block; this GPU has at most {}",
                call.device.shared_bytes_per_block
            ));
        }
        let blocks = grid_over_items(call, u64::from(ITEMS))?;
        let geometry = LaunchGeometry { shared_bytes, ..LaunchGeometry::linear(blocks, THREADS) };
        Ok(Configuration {
            knobs: vec![("POINTS", points), ("PADDING", padding)],
            pipeline: geometry.into(),
            sampling_alignment: sampling_alignment(call),
            ..Configuration::default()
        })
    },
    ..PLAIN
};
