//! From locations to rows and weights, sixteen samples at a time.

use half::{bf16, f16};

use super::geometry::{CHUNK, LaneTable, Offsets, PIECE};
use super::simd::{Simd, Storage};
use crate::view::Expected;
use crate::{DType, Error, Role, TensorView, TensorViewMut};

/// Bits of [`Placed::inside`], one per corner: left or right, top or bottom.
pub(crate) const CORNERS: usize = 4;
pub(crate) const ALL_INSIDE: i32 = 0b1111;

/// A tensor that is read, in its storage format.
#[derive(Clone, Copy)]
pub(crate) enum Span {
    F32(*const f32),
    F16(*const f16),
    Bf16(*const bf16),
}

impl Span {
    /// A checked tensor whose free axes may have any strides, and those strides.
    pub(crate) fn of(
        view: TensorView<'_>,
        expected: &Expected,
    ) -> Result<(Self, [usize; Role::MOST_FREE_AXES]), Error> {
        Ok(match expected.dtype {
            DType::F32 => {
                let (elements, strides) = view.spread::<f32>(expected)?;
                (Self::F32(elements.as_ptr()), strides)
            }
            DType::F16 => {
                let (elements, strides) = view.spread::<f16>(expected)?;
                (Self::F16(elements.as_ptr()), strides)
            }
            DType::Bf16 => {
                let (elements, strides) = view.spread::<bf16>(expected)?;
                (Self::Bf16(elements.as_ptr()), strides)
            }
            DType::F64 => return Err(no_f64_samples(expected)),
        })
    }

    /// Asks for `count` elements from `offset` on.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, offset: usize, count: usize) {
        match self {
            Self::F32(from) => prefetch::<S>(from.wrapping_add(offset).cast(), count * 4),
            Self::F16(from) => prefetch::<S>(from.wrapping_add(offset).cast(), count * 2),
            Self::Bf16(from) => prefetch::<S>(from.wrapping_add(offset).cast(), count * 2),
        }
    }

    /// Converts `count` elements from `offset` on, and fills the last chunk of `to` with zeros.
    ///
    /// # Safety
    /// They lie inside of the tensor, `to` holds whole chunks of floats, and the machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn read_chunks<S: Simd>(self, offset: usize, to: *mut f32, count: usize) {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::F32(from) => convert_chunks::<S, f32>(from.add(offset), to, count),
                Self::F16(from) => convert_chunks::<S, f16>(from.add(offset), to, count),
                Self::Bf16(from) => convert_chunks::<S, bf16>(from.add(offset), to, count),
            }
        }
    }

    /// Converts `count` elements from `offset` on.
    ///
    /// # Safety
    /// They lie inside of the tensor, `to` holds `count` floats, and the machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn read<S: Simd>(self, offset: usize, to: *mut f32, count: usize) {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::F32(from) => convert::<S, f32, f32>(from.add(offset), to, count),
                Self::F16(from) => convert::<S, f16, f32>(from.add(offset), to, count),
                Self::Bf16(from) => convert::<S, bf16, f32>(from.add(offset), to, count),
            }
        }
    }

    /// Loads vectors that follow each other from `offset` on. The last one has `last` elements; its other lanes are zero.
    ///
    /// # Safety
    /// They lie inside of the tensor, `last` is at most a vector, and less only if `N` is 1. The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd, const N: usize>(
        self,
        offset: usize,
        last: usize,
    ) -> [S::Vector; N] {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::F32(from) => load::<S, f32, N>(from.add(offset), last),
                Self::F16(from) => load::<S, f16, N>(from.add(offset), last),
                Self::Bf16(from) => load::<S, bf16, N>(from.add(offset), last),
            }
        }
    }
}

/// # Safety
/// As of [`Span::load`].
#[inline(always)]
unsafe fn load<S: Simd, T: Storage, const N: usize>(from: *const T, last: usize) -> [S::Vector; N] {
    // SAFETY: passed on.
    unsafe {
        let mut vectors = [S::splat(0.0); N];
        for (v, vector) in vectors.iter_mut().enumerate() {
            let from = from.add(v * S::LANES);
            *vector = if last < S::LANES { S::load_first(from, last) } else { S::load(from) };
        }
        vectors
    }
}

/// Stores vectors that follow each other, of the last one `last` lanes.
///
/// # Safety
/// `to` is valid for them. `last` is at most a vector, and less only if `N` is 1. The machine has `S`.
#[inline(always)]
pub(crate) unsafe fn store<S: Simd, T: Storage, const N: usize>(
    to: *mut T,
    vectors: &[S::Vector; N],
    last: usize,
) {
    // SAFETY: passed on.
    unsafe {
        for (v, &vector) in vectors.iter().enumerate() {
            let to = to.add(v * S::LANES);
            if last < S::LANES {
                S::store_first(to, vector, last);
            } else {
                S::store(to, vector);
            }
        }
    }
}

/// Asks for the cache lines of bytes that will be read soon, the last one too where they begin in the middle of
/// one: NumPy's arrays always do, and a pass of `ddetr_enc` took twice as long.
#[inline(always)]
pub(crate) fn prefetch<S: Simd>(from: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE) {
        S::prefetch(from.wrapping_add(offset));
    }
    if ends_in_another_line(from.addr(), bytes) {
        S::prefetch(from.wrapping_add(bytes));
    }
}

/// Whether bytes from an address on lie in one line more than as many from the beginning of one.
#[inline(always)]
const fn ends_in_another_line(address: usize, bytes: usize) -> bool {
    address % LINE > bytes.wrapping_neg() % LINE
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// A tensor that is written, in its storage format. Its pointer may be written through.
#[derive(Clone, Copy)]
pub(crate) struct SpanMut(Span);

impl SpanMut {
    /// A checked tensor to be written.
    pub(crate) fn of(view: TensorViewMut<'_>, expected: &Expected) -> Result<Self, Error> {
        Ok(Self(match expected.dtype {
            DType::F32 => Span::F32(view.elements::<f32>(expected)?.as_mut_ptr()),
            DType::F16 => Span::F16(view.elements::<f16>(expected)?.as_mut_ptr()),
            DType::Bf16 => Span::Bf16(view.elements::<bf16>(expected)?.as_mut_ptr()),
            DType::F64 => return Err(no_f64_samples(expected)),
        }))
    }

    /// A buffer of floats.
    pub(crate) const fn floats(to: *mut f32) -> Self {
        Self(Span::F32(to))
    }

    /// Asks for `count` elements from `offset` on.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, offset: usize, count: usize) {
        self.0.prefetch::<S>(offset, count);
    }

    /// The address of a tensor in `f32`.
    pub(crate) const fn single(self) -> Option<*mut f32> {
        match self.0 {
            Span::F32(to) => Some(to.cast_mut()),
            _ => None,
        }
    }

    /// The address of a tensor of any dtype.
    pub(crate) const fn address(self) -> *mut u8 {
        match self.0 {
            Span::F32(to) => to.cast_mut().cast(),
            Span::F16(to) => to.cast_mut().cast(),
            Span::Bf16(to) => to.cast_mut().cast(),
        }
    }

    /// Stores `count` elements from `offset` on.
    ///
    /// # Safety
    /// They lie inside of the tensor, nothing else uses them, `from` holds `count` floats, and the
    /// machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn write<S: Simd>(self, offset: usize, from: *const f32, count: usize) {
        // SAFETY: passed on.
        unsafe {
            match self.0 {
                Span::F32(to) => convert::<S, f32, f32>(from, to.cast_mut().add(offset), count),
                Span::F16(to) => convert::<S, f32, f16>(from, to.cast_mut().add(offset), count),
                Span::Bf16(to) => convert::<S, f32, bf16>(from, to.cast_mut().add(offset), count),
            }
        }
    }
}

fn no_f64_samples(expected: &Expected) -> Error {
    let (tensor, expected, found) = (expected.tensor, DType::F32, DType::F64);
    Error::DtypeMismatch { tensor, expected, found }
}

/// Copies `count` elements, converting by way of `f32`.
///
/// # Safety
/// `from` and `to` are valid for `count` elements and do not overlap; the machine has `S`.
#[inline(always)]
pub(crate) unsafe fn convert<S: Simd, F: Storage, T: Storage>(
    from: *const F,
    to: *mut T,
    count: usize,
) {
    let mut done = 0;
    // SAFETY: every access lies below `count`.
    unsafe {
        // The common counts as straight code: a loop that copies floats becomes a call of memcpy.
        if count == 32 {
            return convert_exactly::<S, F, T, 32>(from, to);
        } else if count == 16 {
            return convert_exactly::<S, F, T, 16>(from, to);
        }
        while done + S::LANES <= count {
            S::store(to.add(done), S::load(from.add(done)));
            done += S::LANES;
        }
        if done < count {
            let rest = count - done;
            S::store_first(to.add(done), S::load_first(from.add(done), rest), rest);
        }
    }
}

/// [`convert`] into whole chunks. Only stores of whole vectors are forwarded to the loads that soon follow; others they wait
/// for, and for the memory behind them.
///
/// # Safety
/// `from` is valid for `count` elements, `to` for as many chunks as they are in; the machine has `S`.
#[inline(always)]
unsafe fn convert_chunks<S: Simd, F: Storage>(from: *const F, to: *mut f32, count: usize) {
    // SAFETY: reads lie below `count`, writes below the next multiple of a chunk, which is one of a vector.
    unsafe {
        if count == 2 * CHUNK {
            return convert_exactly::<S, F, f32, { 2 * CHUNK }>(from, to);
        } else if count == CHUNK {
            return convert_exactly::<S, F, f32, CHUNK>(from, to);
        }
        let mut done = 0;
        while done + S::LANES <= count {
            S::store(to.add(done), S::load(from.add(done)));
            done += S::LANES;
        }
        if done < count {
            S::store(to.add(done), S::load_first(from.add(done), count - done));
            done += S::LANES;
        }
        while !done.is_multiple_of(CHUNK) {
            S::store(to.add(done), S::splat(0.0));
            done += S::LANES;
        }
    }
}

/// [`convert`] for a count known to the compiler, a multiple of sixteen.
#[inline(always)]
unsafe fn convert_exactly<S: Simd, F: Storage, T: Storage, const COUNT: usize>(
    from: *const F,
    to: *mut T,
) {
    // SAFETY: as for `convert`. All loads come before the stores, in registers.
    unsafe {
        let mut vectors = [S::splat(0.0); COUNT];
        for (v, vector) in vectors[..COUNT / S::LANES].iter_mut().enumerate() {
            *vector = S::load(from.add(v * S::LANES));
        }
        for (v, &vector) in vectors[..COUNT / S::LANES].iter().enumerate() {
            S::store(to.add(v * S::LANES), vector);
        }
    }
}

/// Locations, or offsets, and weights of the samples of a piece, as `f32`. Each row is written in whole chunks, the last one
/// beyond its end, so that both lists have a chunk more.
#[repr(align(64))]
pub(crate) struct Located {
    /// x and y alternating.
    pub xy: [f32; (2 * PIECE + 1) * CHUNK],
    pub weight: [f32; (PIECE + 1) * CHUNK],
}

impl Located {
    pub(crate) const fn new() -> Self {
        Self { xy: [0.0; (2 * PIECE + 1) * CHUNK], weight: [0.0; (PIECE + 1) * CHUNK] }
    }

    /// The coordinates and weights of a chunk of the piece.
    #[inline(always)]
    pub(crate) fn chunk(&self, chunk: usize) -> (&[f32; 2 * CHUNK], &[f32; CHUNK]) {
        let (xy, _) = self.xy.as_chunks();
        let (weight, _) = self.weight.as_chunks();
        (&xy[chunk], &weight[chunk])
    }
}

/// Sixteen placed samples.
#[repr(align(64))]
pub(crate) struct Placed {
    /// Attention weight times bilinear share of each corner (top left, top right, bottom left,
    /// bottom right); 0 for a corner outside of the level, for any attention weight.
    pub weight: [[f32; CHUNK]; CORNERS],
    /// Cell of the sample.
    column: [i32; CHUNK],
    line: [i32; CHUNK],
    /// One bit per corner that lies inside.
    pub inside: [i32; CHUNK],
    /// Position within the cell.
    pub fraction_x: [f32; CHUNK],
    pub fraction_y: [f32; CHUNK],
}

impl Placed {
    pub(crate) const fn new() -> Self {
        Self {
            weight: [[0.0; CHUNK]; CORNERS],
            column: [0; CHUNK],
            line: [0; CHUNK],
            inside: [0; CHUNK],
            fraction_x: [0.0; CHUNK],
            fraction_y: [0.0; CHUNK],
        }
    }

    /// Places sixteen samples at these pixel coordinates. Branch-free, so that the compiler turns it into vectors.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        weights: &[f32; CHUNK],
        table: &LaneTable,
        at: impl Fn(usize) -> (f32, f32),
    ) {
        for (lane, &weight) in weights.iter().enumerate() {
            let (width, height) = (table.width[lane], table.height[lane]);
            let (x, y) = at(lane);
            // False for NaN.
            let counts = (x > -1.0) & (x < width) & (y > -1.0) & (y < height);
            let x = if counts { x } else { -1.0 };
            let y = if counts { y } else { -1.0 };
            let (column, line) = (floor(x), floor(y));
            let (left, top) = (column as f32, line as f32);
            let (fx, fy) = (x - left, y - top);
            let left_in = counts & (column >= 0);
            let top_in = line >= 0;
            let right_in = counts & (left + 1.0 < width);
            let bottom_in = top + 1.0 < height;
            // A sample that does not count goes to the end of the upper border: from there the next
            // row and the next line are border as well, so that it touches no pixel at all.
            // SAFETY: a level's side is at most 2^24.
            let beyond = unsafe { width.to_int_unchecked::<i32>() };
            let column = if counts { column } else { beyond };
            let (upper, lower) = (weight * (1.0 - fy), weight * fy);
            // Chosen, not multiplied by 0: an infinite weight must not turn into NaN.
            let keep = |inside: bool, weight: f32| if inside { weight } else { 0.0 };
            self.weight[0][lane] = keep(left_in & top_in, upper * (1.0 - fx));
            self.weight[1][lane] = keep(right_in & top_in, upper * fx);
            self.weight[2][lane] = keep(left_in & bottom_in, lower * (1.0 - fx));
            self.weight[3][lane] = keep(right_in & bottom_in, lower * fx);
            self.inside[lane] = i32::from(left_in & top_in)
                | i32::from(right_in & top_in) << 1
                | i32::from(left_in & bottom_in) << 2
                | i32::from(right_in & bottom_in) << 3;
            self.column[lane] = column;
            self.line[lane] = line;
            self.fraction_x[lane] = fx;
            self.fraction_y[lane] = fy;
        }
    }

    /// Places sixteen samples on the pixels that these coordinates fall on, or on the last ones of the level. Their upper left
    /// corner is all they have.
    #[inline(always)]
    pub(crate) fn place_nearest(
        &mut self,
        weights: &[f32; CHUNK],
        table: &LaneTable,
        at: impl Fn(usize) -> (f32, f32),
    ) {
        for (lane, &weight) in weights.iter().enumerate() {
            let (x, y) = at(lane);
            let counts = !(x.is_nan() | y.is_nan());
            // Clamped first, so that the integer fits for any coordinate.
            let pixel = |x: f32, size: f32| {
                let x = if x >= 0.0 { x } else { 0.0 };
                let x = if x < size { x } else { size - 1.0 };
                // SAFETY: from 0 to a level's side, which is at most 2^24.
                unsafe { x.to_int_unchecked::<i32>() }
            };
            let (column, line) = (pixel(x, table.width[lane]), pixel(y, table.height[lane]));
            // As above, a sample that does not count goes to the border. SAFETY: as above.
            let beyond = unsafe { table.width[lane].to_int_unchecked::<i32>() };
            self.column[lane] = if counts { column } else { beyond };
            self.line[lane] = if counts { line } else { -1 };
            self.inside[lane] = i32::from(counts);
            self.weight[0][lane] = if counts { weight } else { 0.0 };
            self.fraction_x[lane] = 0.0;
            self.fraction_y[lane] = 0.0;
        }
        // Nothing is added through the other corners, nor a NaN of the neighbours.
        for corner in &mut self.weight[1..] {
            *corner = [0.0; CHUNK];
        }
    }

    /// The rows of the left corners. The right ones follow at the next column.
    #[inline(always)]
    pub(crate) fn rows(&self, offsets: &Offsets) -> CornerRows {
        let mut rows = CornerRows { top: [0; CHUNK], bottom: [0; CHUNK] };
        for lane in 0..CHUNK {
            let step = offsets.line_step[lane];
            // Wrapping: lanes past the last sample, and corners outside of the source, may hold
            // anything; they are not used.
            let top = offsets.origin[lane]
                .wrapping_add(self.line[lane].wrapping_mul(step))
                .wrapping_add(self.column[lane].wrapping_mul(offsets.column_step));
            rows.top[lane] = top;
            rows.bottom[lane] = top.wrapping_add(step);
        }
        rows
    }
}

/// Element offsets of the rows of sixteen samples: of the top left and bottom left corners.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct CornerRows {
    pub top: [i32; CHUNK],
    pub bottom: [i32; CHUNK],
}

impl CornerRows {
    pub(crate) const fn new() -> Self {
        Self { top: [0; CHUNK], bottom: [0; CHUNK] }
    }
}

/// `floor`, in instructions that every vector unit has. `x` is finite and fits `i32`.
#[inline(always)]
fn floor(x: f32) -> i32 {
    debug_assert!((-1.0..=16_777_216.0).contains(&x));
    // SAFETY: placement has clamped x to at least -1, and a level's side is at most 2^24.
    let truncated = unsafe { x.to_int_unchecked::<i32>() };
    truncated - i32::from((truncated as f32) > x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_inside_of_a_line_may_end_in_one_more() {
        let lines = |address: usize, bytes: usize| {
            bytes.div_ceil(LINE) + usize::from(ends_in_another_line(address, bytes))
        };
        assert_eq!([0, 16, 48, 64].map(|address| lines(address, 128)), [2, 3, 3, 2]);
        assert_eq!([0, 32, 40, 56].map(|address| lines(address, 96)), [2, 2, 3, 3]);
        assert_eq!([0, 56, 60].map(|address| lines(address, 8)), [1, 1, 2]);
        assert_eq!(lines(0, 0), 0);
    }
}
