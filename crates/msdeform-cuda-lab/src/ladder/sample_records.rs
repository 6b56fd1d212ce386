//! The workspace of `ladder/sample_records.cuh`: an offset and four weights for every sample.

use super::items;
use msdeform_cuda::variants::Call;
use msdeform_cuda::{Derived, LaunchGeometry, Pipeline};

const OFFSET_BYTES: usize = 4;
const WEIGHT_BYTES: usize = 8;
const THREADS: u32 = 256;
/// Blocks per multiprocessor of the kernel that writes the records; each thread takes several samples.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 16;

/// Reserves room for the records and adds the kernel that writes them.
pub(super) fn write(
    pipeline: &mut Pipeline,
    derived: &mut Derived,
    call: &Call<'_>,
) -> Result<(), String> {
    let samples = usize::try_from(items(call))
        .ok()
        .and_then(|items| items.checked_mul(call.problem.samples()))
        .filter(|samples| samples.checked_mul(OFFSET_BYTES + WEIGHT_BYTES).is_some())
        .ok_or("more samples than memory has addresses")?;
    derived.size("record_offsets_at", pipeline.reserve(samples * OFFSET_BYTES));
    derived.size("record_weights_at", pipeline.reserve(samples * WEIGHT_BYTES));
    let most = u64::from(call.device.multiprocessors) * BLOCKS_PER_MULTIPROCESSOR;
    let blocks = (samples as u64).div_ceil(u64::from(THREADS)).clamp(1, most);
    pipeline.launch("records", LaunchGeometry::linear(blocks as u32, THREADS));
    Ok(())
}
