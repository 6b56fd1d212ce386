//! One coordinate of a sample: what it touches, and how far rounding may move it.

/// One coordinate of a sample.
pub(crate) struct Axis {
    position: f64,
    size: usize,
    pub counts: bool,
    /// Whether `f32` coordinates are in the same cell: exact, or away from its borders.
    pub is_sure: bool,
    is_nearest: bool,
    /// What the coordinate is the sum of, in pixels.
    summed: f64,
}

/// From a border between pixels on, in pixels, nobody is in doubt about the side.
const DISTANCE: f64 = 0.01;

impl Axis {
    pub(crate) fn at(location: f64, size: usize) -> Self {
        let position = location * size as f64 - 0.5;
        let counts = position > -1.0 && position < size as f64;
        // Product and difference both: not every backend has a fused multiply-add.
        let in_f32 = |number: f64| f64::from(number as f32) == number;
        let is_exact = in_f32(location * size as f64) && in_f32(position);
        let is_far = !(position > -1.5 && position < size as f64 + 0.5);
        let is_sure = is_exact || is_far || (position - position.round()).abs() > DISTANCE;
        let summed = position.abs() + (position + 0.5).abs();
        Self { position, size, counts, is_sure, is_nearest: false, summed }
    }

    /// One that was added up in `f32` from a reference and an offset, which nothing is exact about.
    pub(crate) fn summed(self, summed: f64) -> Self {
        let is_far = !(self.position > -1.5 && self.position < self.size as f64 + 0.5);
        let is_sure = is_far || (self.position - self.position.round()).abs() > DISTANCE;
        Self { is_sure, summed: self.summed + 2.0 * summed, ..self }
    }

    /// The one pixel of a sample that takes the nearest.
    pub(crate) fn nearest(location: f64, size: usize) -> Self {
        let exact = location * size as f64 + 0.5;
        let border = exact.round();
        let is_far = !(border >= 1.0 && border < size as f64);
        let is_sure = is_far || (exact - border).abs() > DISTANCE;
        let position = exact.trunc().clamp(0.0, size as f64 - 1.0);
        let counts = !location.is_nan();
        Self { position, size, counts, is_sure, is_nearest: true, summed: 0.0 }
    }

    /// The pixels of its cell that lie inside, and their shares.
    pub(crate) fn corners(&self) -> impl Iterator<Item = (usize, f64)> {
        let first = self.position.floor();
        let fraction = self.position - first;
        let pair = [(first, 1.0 - fraction), (first + 1.0, fraction)];
        let size = if self.is_nearest { first + 1.0 } else { self.size as f64 };
        let inside = move |&(pixel, _): &(f64, f64)| pixel >= 0.0 && pixel < size;
        pair.into_iter().filter(inside).map(|(pixel, share)| (pixel as usize, share))
    }

    /// How far a coordinate may be off in `f32`: product and difference are rounded once each.
    pub(crate) fn rounding(&self) -> f64 {
        f64::from(f32::EPSILON) / 2.0 * self.summed
    }

    /// All pixels that it may touch, whichever cell it falls into.
    pub(crate) fn reach(&self) -> impl Iterator<Item = usize> {
        let near = self.position.round().clamp(-2.0, self.size as f64 + 2.0) as i64;
        let size = self.size as i64;
        (near - 1..=near + 1).filter(move |pixel| (0..size).contains(pixel)).map(|p| p as usize)
    }
}
