//! One coordinate of a sample: which pixels it touches, and how far rounding may move it.

/// Distance from a cell border, in pixels, up to which the gradient of a sample's own location is not compared: the
/// gradient jumps there, and `f32` coordinates may fall on the other side.
pub const BORDER_DISTANCE: f64 = 0.01;

/// One coordinate of a sample.
pub(super) struct Axis {
    position: f64,
    size: usize,
    /// Whether the sample contributes anything along this axis.
    pub counts: bool,
    is_nearest: bool,
    /// Distance from the nearest cell border in pixels; infinite if rounding cannot change the cell.
    border: f64,
    /// Bound on the rounding error of the `f32` coordinate, in pixels.
    error: f64,
}

const HALF_STEP: f64 = f32::EPSILON as f64 / 2.0;

/// Distance from the nearest of all borders inside of a level and at its limits.
fn border_distance(position: f64, size: usize) -> f64 {
    // Written so that NaN is far away: such a sample never counts.
    let is_near = position > -1.5 && position < size as f64 + 0.5;
    if is_near { (position - position.round()).abs() } else { f64::INFINITY }
}

impl Axis {
    /// The coordinate of a given location.
    pub(super) fn at(location: f64, size: usize) -> Self {
        let position = location * size as f64 - 0.5;
        let counts = position > -1.0 && position < size as f64;
        // Both the product and the difference: not every backend has a fused multiply-add.
        let in_f32 = |number: f64| f64::from(number as f32) == number;
        let is_exact = in_f32(location * size as f64) && in_f32(position);
        let border = if is_exact { f64::INFINITY } else { border_distance(position, size) };
        let error = HALF_STEP * (position.abs() + (position + 0.5).abs());
        Self { position, size, counts, is_nearest: false, border, error }
    }

    /// The coordinate of a location that is the `f32` sum of a reference and an offset. `terms` is the sum of their
    /// absolute values in pixels; it may be much larger than the location.
    pub(super) fn of_sum(location: f64, size: usize, terms: f64) -> Self {
        let given = Self::at(location, size);
        let border = border_distance(given.position, size);
        Self { border, error: given.error + 2.0 * HALF_STEP * terms, ..given }
    }

    /// As [`Axis::of_sum`], for a sample that reads only the nearest pixel.
    pub(super) fn nearest(location: f64, size: usize, terms: f64) -> Self {
        let exact = location * size as f64 + 0.5;
        // At both ends the last pixel is the nearest, however far away the sample lies.
        let is_near = exact.round() >= 1.0 && exact.round() < size as f64;
        let border = if is_near { (exact - exact.round()).abs() } else { f64::INFINITY };
        let position = exact.trunc().clamp(0.0, size as f64 - 1.0);
        let error = HALF_STEP * (2.0 * exact.abs() + 2.0 * terms);
        Self { position, size, counts: !location.is_nan(), is_nearest: true, border, error }
    }

    /// Whether `f32` coordinates are in the same cell, with room to spare.
    pub(super) fn is_sure(&self) -> bool {
        self.border > BORDER_DISTANCE
    }

    /// The same with a much smaller distance, for elements that sum over many samples: a few of those are always near a
    /// border. The distance is ten times the error of `f32` coordinates on this side, or on one of 200 pixels.
    pub(super) fn is_sure_in_sums(&self) -> bool {
        self.border > f64::max(1e-6 * self.size.max(200) as f64, 3.0 * self.error)
    }

    /// The pixels of its cell that lie inside of the level, and their shares.
    pub(super) fn corners(&self) -> impl Iterator<Item = (usize, f64)> {
        let first = self.position.floor();
        let fraction = self.position - first;
        let pair = [(first, 1.0 - fraction), (first + 1.0, fraction)];
        let size = if self.is_nearest { first + 1.0 } else { self.size as f64 };
        let inside = move |&(pixel, _): &(f64, f64)| pixel >= 0.0 && pixel < size;
        pair.into_iter().filter(inside).map(|(pixel, share)| (pixel as usize, share))
    }

    /// How far rounding of the coordinate may move a share.
    pub(super) fn rounding(&self) -> f64 {
        if self.is_nearest { 0.0 } else { self.error }
    }

    /// All pixels that it may touch, whichever cell it falls into.
    pub(super) fn reach(&self) -> impl Iterator<Item = usize> {
        let near = self.position.round().clamp(-2.0, self.size as f64 + 2.0) as i64;
        let size = self.size as i64;
        (near - 1..=near + 1).filter(move |pixel| (0..size).contains(pixel)).map(|p| p as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_near_cell_borders_are_found() {
        let at = |pixel: f64| Axis::at((pixel + 0.5) / 9.0, 9);
        for (pixel, is_sure) in [(2.5, true), (2.005, false), (0.995, false), (9.005, false)] {
            assert_eq!(at(pixel).is_sure(), is_sure, "{pixel}");
        }
        // Far outside nothing depends on the cell.
        assert!(at(10.0).is_sure() && at(-2.0).is_sure() && at(f64::NAN).is_sure());
        assert!(at(2.005).is_sure_in_sums() && !at(2.000_1).is_sure_in_sums());
        // A power of two: the coordinate is exact on every backend.
        assert!(Axis::at(0.3125, 8).is_sure_in_sums());
        assert!(!Axis::of_sum(0.3125, 8, 8.0).is_sure_in_sums());
    }

    #[test]
    fn on_long_sides_sums_keep_a_larger_distance() {
        let is_sure = |size: usize, distance: f64| {
            Axis::at((1.5 + distance) / size as f64, size).is_sure_in_sums()
        };
        assert!(is_sure(100, 2.1e-4) && !is_sure(100, 1.9e-4));
        assert!(is_sure(7000, 7.1e-3) && !is_sure(7000, 6.9e-3));
    }

    #[test]
    fn a_large_offset_that_leads_back_keeps_a_larger_distance() {
        // A thousandth of a pixel behind a border.
        let is_sure = |terms: f64| Axis::of_sum(2.501 / 100.0, 100, terms).is_sure_in_sums();
        assert!(!is_sure(1e6) && is_sure(1e2));
    }
}
