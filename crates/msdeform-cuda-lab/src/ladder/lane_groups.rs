//! Common parts of the rungs in which four lanes own an item; most include `ladder/lane_groups.cuh`.

use super::{CHANNELS, check_shared_bytes, grid_over_items};
use msdeform_cuda::LaunchGeometry;
use msdeform_cuda::variants::{Call, Configuration, Knob, KnobChoices};

/// Lanes of a pixel: 16 bytes each.
pub(super) const GROUP_LANES: u64 = (CHANNELS * 2 / 16) as u64;

/// Threads of a block.
pub(super) const THREADS: Knob =
    Knob { name: "THREADS", values: &[128, 256], meaning: "threads of a block" };

/// Threads of a block if the knob is not set.
pub(super) const DEFAULT_THREADS: i64 = 256;

/// A launch with `threads_per_item` threads for each item.
pub(super) fn launch(
    call: &Call<'_>,
    knobs: &KnobChoices,
    threads_per_item: u64,
) -> Result<Configuration, String> {
    launch_of(call, knobs.get(THREADS.name).unwrap_or(DEFAULT_THREADS), threads_per_item)
}

/// [`launch`] with blocks of `threads` threads.
pub(super) fn launch_of(
    call: &Call<'_>,
    threads: i64,
    threads_per_item: u64,
) -> Result<Configuration, String> {
    let blocks = grid_over_items(call, threads as u64 / threads_per_item)?;
    Ok(Configuration {
        knobs: vec![(THREADS.name, threads)],
        pipeline: LaunchGeometry::linear(blocks, threads as u32).into(),
        ..Configuration::default()
    })
}

/// [`launch`] with `bytes_per_thread` bytes of shared memory for every thread.
pub(super) fn launch_with_shared(
    call: &Call<'_>,
    knobs: &KnobChoices,
    bytes_per_thread: u64,
) -> Result<Configuration, String> {
    let mut configuration = launch(call, knobs, GROUP_LANES)?;
    if let Some(geometry) = configuration.geometry() {
        let shared = bytes_per_thread * u64::from(geometry.block[0]);
        check_shared_bytes(call, shared)?;
        configuration.pipeline = LaunchGeometry { shared_bytes: shared as u32, ..geometry }.into();
    }
    Ok(configuration)
}
