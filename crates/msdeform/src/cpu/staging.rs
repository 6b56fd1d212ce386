//! Copies of one head's values: compact, `f32`, every level framed by zeros.

use super::geometry::{Geometry, LevelGeometry};
use super::placement::convert;
use super::simd::{Simd, Storage};

/// Copies the pixels of one level of a head into its place in the slab.
///
/// # Safety
/// `head` points to pixel 0 of a head of a value tensor that `geometry` describes, `slab` to
/// `slab_rows * slab_stride` floats; the machine has `S`.
#[inline(always)]
pub(crate) unsafe fn stage_level<S: Simd, T: Storage>(
    geometry: &Geometry,
    level: &LevelGeometry,
    head: *const T,
    slab: *mut f32,
) {
    let (stride, channels) = (geometry.slab_stride, geometry.channels);
    for line in 0..level.height {
        let first_row = level.slab_start + (line + 1) * level.slab_pitch + 1;
        let first_pixel = level.source_origin + line * level.source_pitch;
        // SAFETY: line and column lie inside of the level, in the tensor as in the slab.
        unsafe {
            let mut to = slab.add(first_row * stride);
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
