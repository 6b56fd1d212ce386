//! Copies of one head's values: compact, `f32`, every level framed by zeros.

use super::geometry::{Geometry, LevelGeometry};
use super::placement::convert;
use super::simd::{Simd, Storage};

/// Copies the pixels of one level of a head into its place in the scratch.
///
/// # Safety
/// `head` points to pixel 0 of a head of a value tensor that `geometry` describes, `scratch` to
/// `scratch_rows * scratch_stride` floats; the machine has `S`.
#[inline(always)]
pub(crate) unsafe fn stage_level<S: Simd, T: Storage>(
    geometry: &Geometry,
    level: &LevelGeometry,
    head: *const T,
    scratch: *mut f32,
) {
    let (stride, channels) = (geometry.scratch_stride, geometry.channels);
    for line in 0..level.height {
        let first_row = level.scratch_start + (line + 1) * level.scratch_pitch + 1;
        let first_pixel = level.source_origin + line * level.source_pitch;
        // SAFETY: line and column lie inside of the level, in the tensor as in the scratch.
        unsafe {
            let mut to = scratch.add(first_row * stride);
            let mut from = head.add(first_pixel * geometry.pixel_stride);
            for _ in 0..level.width {
                convert::<S, T, f32>(from, to, channels);
                to = to.add(stride);
                // Not beyond the end: the last pixel's successor may lie outside of the tensor.
                from = from.wrapping_add(geometry.pixel_stride);
            }
        }
    }
}
