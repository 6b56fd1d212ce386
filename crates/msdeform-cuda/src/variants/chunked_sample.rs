//! What the kernels that include `chunked_sample.cuh` have in common.

use msdeform::ValueLayout;

use super::{Call, check_inline_levels};

/// One load.
const CHUNK_BYTES: usize = 16;
/// `place_sample` adds pixel numbers to 2^23 in fp32.
const MAX_LEVEL_PIXELS: usize = 1 << 23;

/// Lanes that read one pixel of one head; levels have at least `smallest_side` pixels along each axis.
///
/// # Errors
/// Why these kernels cannot do the call.
pub fn lanes_per_pixel(call: &Call<'_>, smallest_side: usize) -> Result<usize, String> {
    let problem = call.problem;
    check_inline_levels(problem)?;
    let element_bytes = problem.dtype().size_bytes();
    let row_bytes = problem.channels() * element_bytes;
    if row_bytes == 0 || row_bytes > 32 * CHUNK_BYTES || !row_bytes.is_multiple_of(CHUNK_BYTES) {
        return Err(format!(
            "{} channels take {row_bytes} bytes; a pixel must take 16 to 512 bytes in steps of 16",
            problem.channels()
        ));
    }
    if problem.samples() == 0 {
        return Err("the levels have no points; it needs at least one".to_owned());
    }
    for level in problem.levels() {
        let (height, width) = (level.height, level.width);
        let pixels = level.footprint(problem.layout());
        if height.min(width) < smallest_side || pixels >= MAX_LEVEL_PIXELS {
            return Err(format!(
                "a level has {height} x {width} pixels; it takes at least {smallest_side} x {smallest_side} and \
                 fewer than 2^23 in all"
            ));
        }
    }
    if call.strides.pixel != problem.pixel_stride() as i64
        || !call.strides.all_multiples_of(CHUNK_BYTES / element_bytes)
    {
        return Err(format!(
            "`value` has {:?}; its pixels must be packed and start at multiples of 16 bytes",
            call.strides
        ));
    }
    // Offsets are counted in chunks, in 32 bits.
    let chunks =
        problem.spatial().saturating_mul(problem.pixel_stride() * element_bytes / CHUNK_BYTES);
    if u32::try_from(chunks).is_err() {
        return Err(format!(
            "the {} pixels of an image span 64 GiB or more; it takes less",
            problem.spatial()
        ));
    }
    Ok((row_bytes / CHUNK_BYTES).next_power_of_two())
}

/// Whether the queries are the pixels of the levels, in order: an encoder.
pub(super) fn queries_are_pixels(call: &Call<'_>) -> bool {
    let pixels = call.problem.levels().iter().map(|level| level.height * level.width);
    pixels.sum::<usize>() == call.problem.queries()
}

/// Alignment that vector loads of four samples need; only elements where the rows are not multiples.
pub fn sampling_alignment(call: &Call<'_>) -> usize {
    let bytes = call.problem.sampling_dtype().size_bytes();
    if call.problem.samples().is_multiple_of(4) { CHUNK_BYTES } else { bytes }
}

/// The same where one load brings both coordinates of a location, for any number of samples.
pub fn paired_sampling_alignment(call: &Call<'_>) -> usize {
    sampling_alignment(call).max(2 * call.problem.sampling_dtype().size_bytes())
}

/// Heads whose rows one 128-byte line holds, where heads lie side by side.
pub(super) fn heads_of_a_line(call: &Call<'_>, lanes: usize) -> usize {
    let heads = call.problem.heads();
    let mut shared = 1;
    if call.problem.layout() == ValueLayout::Interleaved {
        while 2 * shared * lanes <= 8 && heads.is_multiple_of(2 * shared) {
            shared *= 2;
        }
    }
    shared
}
