//! Where the samples of a call come from: locations and weights (plain operator), or offsets and logits (fused operator).

use std::ops::Range;

use super::geometry::{CHUNK, Geometry, LaneTable, MOST_ROWS};
use super::placement::{Located, Placed, Span};
use super::simd::Simd;
use super::softmax::softmax;
use super::workspace::{AlignedFloats, NoScratch};
use crate::call::Tensors;
use crate::view::Expected;
use crate::{Error, Offsets, Problem, ReferenceKind, Role};

/// What the samples of a call are read from.
pub(crate) enum SampleSource {
    Plain(PlainSource),
    Offsets(OffsetSource),
}

impl SampleSource {
    /// Checks and takes the tensors that the samples of a call are read from.
    pub(crate) fn of(problem: &Problem, tensors: &mut Tensors<'_, '_>) -> Result<Self, Error> {
        let mut read = |role| Span::of(tensors.input(role)?, &Expected::new(problem, role));
        let Some(&rule) = problem.offsets() else {
            let (locations, weights) = (read(Role::Locations)?.0, read(Role::Weights)?.0);
            return Ok(Self::Plain(PlainSource { locations, weights }));
        };
        let (references, strides) = read(Role::References)?;
        Ok(Self::Offsets(OffsetSource {
            rule,
            references: Strided::new((references, strides)),
            reference_step: strides[2],
            offsets: Strided::new(read(Role::Offsets)?),
            logits: Strided::new(read(Role::Logits)?),
        }))
    }
}

/// Each is placed by code of its own: one for both took up to a seventh longer.
impl SampleSource {
    /// Asks for what a row reads.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(&self, geometry: &Geometry, row: Row, of_row: Range<usize>) {
        match self {
            Self::Plain(source) => source.prefetch::<S>(geometry, row, of_row),
            Self::Offsets(source) => source.prefetch::<S>(geometry, row, of_row),
        }
    }

    /// Whether samples have one corner, the nearest pixel, and not four.
    pub(crate) const fn is_nearest(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Offsets(source) => source.rule.is_nearest(),
        }
    }
}

/// Locations and weights as they are.
pub(crate) struct PlainSource {
    pub locations: Span,
    pub weights: Span,
}

/// Offsets, logits and references, each with any distance from one query to the next.
pub(crate) struct OffsetSource {
    pub rule: Offsets,
    pub references: Strided,
    /// Elements from one reference of a query to the next.
    pub reference_step: usize,
    pub offsets: Strided,
    pub logits: Strided,
}

/// A tensor whose images and queries lie anywhere.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub span: Span,
    pub image: usize,
    pub query: usize,
}

/// An output row: one query and head.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub n: usize,
    pub query: usize,
    pub m: usize,
    /// Its number: `(n * Lq + query) * M + m`.
    pub index: usize,
}

impl Row {
    #[inline(always)]
    pub(crate) const fn new(geometry: &Geometry, n: usize, query: usize, m: usize) -> Self {
        Self { n, query, m, index: (n * geometry.queries + query) * geometry.heads + m }
    }

    #[inline(always)]
    pub(crate) const fn numbered(geometry: &Geometry, index: usize) -> Self {
        let (nq, m) = (index / geometry.heads, index % geometry.heads);
        Self { n: nq / geometry.queries, query: nq % geometry.queries, m, index }
    }

    /// The row of a later query and the same head. Only asked for ahead of time, it may lie beyond the last one.
    #[inline(always)]
    pub(crate) const fn ahead(self, geometry: &Geometry, queries: usize) -> Self {
        let (query, index) = (self.query + queries, self.index + queries * geometry.heads);
        Self { query, index, ..self }
    }
}

impl Strided {
    const fn new((span, [image, query, _]): (Span, [usize; Role::MOST_FREE_AXES])) -> Self {
        Self { span, image, query }
    }

    /// Where a row begins that has `each` elements per head.
    const fn of(&self, row: Row, each: usize) -> usize {
        // Wrapping: rows that are only asked for ahead of time may lie anywhere.
        let image = row.n.wrapping_mul(self.image);
        image.wrapping_add(row.query.wrapping_mul(self.query)).wrapping_add(row.m * each)
    }
}

/// What a thread keeps of calls from offsets, as `f32`: the weights of the row it is at after the softmax, and the references
/// of all rows that are placed together.
#[derive(Clone, Copy)]
pub(crate) struct RowScratch {
    pub weights: *mut f32,
    pub references: *mut f32,
}

impl RowScratch {
    /// Both in one buffer, whole chunks of each.
    pub(crate) fn reserve(
        buffer: &mut AlignedFloats,
        geometry: &Geometry,
    ) -> Result<Self, NoScratch> {
        // Without queries a description may state any number of samples, of which none has to be there.
        if geometry.rule.is_none() || geometry.queries == 0 {
            return Ok(Self { weights: std::ptr::null_mut(), references: std::ptr::null_mut() });
        }
        // A chunk more: groups of levels may begin within a chunk.
        let weights_len = geometry.samples.next_multiple_of(CHUNK) + CHUNK;
        let references_len = (MOST_ROWS * geometry.references * 4).next_multiple_of(CHUNK);
        let weights = buffer.reserve(weights_len + references_len)?;
        Ok(Self { weights, references: weights.wrapping_add(weights_len) })
    }
}

/// How the samples of a row are read and placed.
pub(crate) trait Source {
    /// Asks for the samples of a row.
    fn prefetch<S: Simd>(&self, geometry: &Geometry, row: Row, of_row: Range<usize>);

    /// Prepares a row, before any of its samples is located. `slot` counts the rows that are placed together.
    ///
    /// # Safety
    /// The row is below its count, `slot` below that of rows placed together, the scratch is that of `geometry`. The machine
    /// has `S`.
    unsafe fn begin<S: Simd>(&self, geometry: &Geometry, row: Row, slot: usize, to: &RowScratch);

    /// Reads what `lanes` samples of a row from `first` on are placed by, to lane `at` and the following ones. It writes
    /// beyond them.
    ///
    /// # Safety
    /// They are samples of the row and lanes of the piece; the row is the last one that has been begun. The machine has `S`.
    unsafe fn locate<S: Simd>(
        &self,
        geometry: &Geometry,
        row: Row,
        samples: (usize, usize),
        scratch: &RowScratch,
        to: (&mut Located, usize),
    );

    /// Places a chunk of the piece.
    ///
    /// # Safety
    /// The chunk's rows have been begun, and `table` is theirs. The machine has `S`.
    unsafe fn place<S: Simd>(
        &self,
        located: (&Located, usize),
        table: &LaneTable,
        scratch: &RowScratch,
        placed: &mut Placed,
    );
}

impl Source for PlainSource {
    #[inline(always)]
    fn prefetch<S: Simd>(&self, geometry: &Geometry, row: Row, of_row: Range<usize>) {
        let first = row.index * geometry.samples + of_row.start;
        self.locations.prefetch::<S>(2 * first, 2 * of_row.len());
        self.weights.prefetch::<S>(first, of_row.len());
    }

    #[inline(always)]
    unsafe fn begin<S: Simd>(&self, _: &Geometry, _: Row, _: usize, _: &RowScratch) {}

    #[inline(always)]
    unsafe fn locate<S: Simd>(
        &self,
        geometry: &Geometry,
        row: Row,
        (first, lanes): (usize, usize),
        _: &RowScratch,
        (located, at): (&mut Located, usize),
    ) {
        let sample = row.index * geometry.samples + first;
        // SAFETY: the samples belong to the row, their lanes to the piece, which has a chunk more.
        unsafe {
            let (xy, weight) = (located.xy.as_mut_ptr(), located.weight.as_mut_ptr());
            self.locations.read_chunks::<S>(2 * sample, xy.add(2 * at), 2 * lanes);
            self.weights.read_chunks::<S>(sample, weight.add(at), lanes);
        }
    }

    #[inline(always)]
    unsafe fn place<S: Simd>(
        &self,
        (located, chunk): (&Located, usize),
        table: &LaneTable,
        _: &RowScratch,
        placed: &mut Placed,
    ) {
        let pixel = |location: f32, size: f32| fused::<S>(location, size, -0.5);
        let (xy, weight) = located.chunk(chunk);
        placed.place(weight, table, |lane| {
            (pixel(xy[2 * lane], table.width[lane]), pixel(xy[2 * lane + 1], table.height[lane]))
        });
    }
}

impl Source for OffsetSource {
    #[inline(always)]
    fn prefetch<S: Simd>(&self, geometry: &Geometry, row: Row, of_row: Range<usize>) {
        let samples = geometry.samples;
        let offsets = self.offsets.of(row, 2 * samples).wrapping_add(2 * of_row.start);
        self.offsets.span.prefetch::<S>(offsets, 2 * of_row.len());
        self.logits.span.prefetch::<S>(self.logits.of(row, samples), samples);
    }

    #[inline(always)]
    unsafe fn begin<S: Simd>(&self, geometry: &Geometry, row: Row, slot: usize, to: &RowScratch) {
        let numbers = slot * geometry.references * self.rule.kind().components();
        // SAFETY: the scratch has room for the references of all rows that are placed together.
        unsafe {
            let references = to.references.add(numbers);
            self.begin_row::<S>(geometry, row, &RowScratch { references, ..*to });
        }
    }

    #[inline(always)]
    unsafe fn locate<S: Simd>(
        &self,
        geometry: &Geometry,
        row: Row,
        (first, lanes): (usize, usize),
        scratch: &RowScratch,
        (located, at): (&mut Located, usize),
    ) {
        // SAFETY: the samples belong to the row, their lanes to the piece, which has a chunk more; the scratch has a
        // chunk of weights more.
        unsafe {
            let xy = located.xy.as_mut_ptr().add(2 * at);
            self.read_offsets::<S>(geometry, row, (first, lanes), xy);
            let weights = scratch.weights.add(first);
            for start in (0..lanes).step_by(CHUNK) {
                let to = located.weight.as_mut_ptr().add(at + start);
                std::ptr::copy_nonoverlapping(weights.add(start), to, CHUNK);
            }
        }
    }

    #[inline(always)]
    unsafe fn place<S: Simd>(
        &self,
        located: (&Located, usize),
        table: &LaneTable,
        scratch: &RowScratch,
        placed: &mut Placed,
    ) {
        // SAFETY: passed on.
        unsafe { self.place_at::<S>(table, scratch.references, located, placed) }
    }
}

impl OffsetSource {
    /// # Safety
    /// As for [`Source::begin`].
    #[inline(always)]
    pub(crate) unsafe fn begin_row<S: Simd>(&self, geometry: &Geometry, row: Row, to: &RowScratch) {
        let (samples, components) = (geometry.samples, self.rule.kind().components());
        // SAFETY: the row is below its count, so that its logits and references are there; the scratch has room for both.
        unsafe {
            self.logits.span.read_chunks::<S>(self.logits.of(row, samples), to.weights, samples);
            if self.rule.has_softmax() {
                let chunks = samples.div_ceil(CHUNK);
                for lane in samples..chunks * CHUNK {
                    *to.weights.add(lane) = f32::NEG_INFINITY;
                }
                softmax::<S>(std::slice::from_raw_parts_mut(to.weights.cast(), chunks));
            }
            let first = self.references.of(row, 0);
            for reference in 0..geometry.references {
                let from = first + reference * self.reference_step;
                let to = to.references.add(reference * components);
                self.references.span.read::<S>(from, to, components);
            }
        }
    }

    /// # Safety
    /// They are samples of the row, and there is room for whole chunks. The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn read_offsets<S: Simd>(
        &self,
        geometry: &Geometry,
        row: Row,
        (first, lanes): (usize, usize),
        to: *mut f32,
    ) {
        let from = self.offsets.of(row, 2 * geometry.samples) + 2 * first;
        // SAFETY: passed on.
        unsafe { self.offsets.span.read_chunks::<S>(from, to, 2 * lanes) }
    }

    /// # Safety
    /// `references` are those of the chunk's rows. The machine has `S`.
    #[inline(always)]
    unsafe fn place_at<S: Simd>(
        &self,
        table: &LaneTable,
        references: *const f32,
        (located, chunk): (&Located, usize),
        placed: &mut Placed,
    ) {
        let shift = if self.rule.is_nearest() { 0.5 } else { -0.5 };
        // SAFETY: tables name references of the rows that are placed together.
        let number = |lane: usize, component: usize| unsafe {
            *references.add(table.reference[lane] as usize + component)
        };
        let (xy, weight) = located.chunk(chunk);
        // Pixels, without the way through a location between 0 and 1: a rounding less, and none at all for points.
        let from_point = |lane: usize| {
            let x = fused::<S>(number(lane, 0), table.width[lane], xy[2 * lane]) + shift;
            let y = fused::<S>(number(lane, 1), table.height[lane], xy[2 * lane + 1]) + shift;
            (x, y)
        };
        let from_box = |lane: usize| {
            let (scale_x, scale_y) =
                (number(lane, 2) * table.box_x[lane], number(lane, 3) * table.box_y[lane]);
            let x = fused::<S>(number(lane, 0), table.width[lane], shift);
            let y = fused::<S>(number(lane, 1), table.height[lane], shift);
            (fused::<S>(xy[2 * lane], scale_x, x), fused::<S>(xy[2 * lane + 1], scale_y, y))
        };
        match (self.rule.kind(), self.rule.is_nearest()) {
            (ReferenceKind::Point, false) => placed.place(weight, table, from_point),
            (ReferenceKind::Box, false) => placed.place(weight, table, from_box),
            (ReferenceKind::Point, true) => {
                placed.place_nearest(weight, table, from_point);
            }
            (ReferenceKind::Box, true) => placed.place_nearest(weight, table, from_box),
        }
    }
}

/// `a * b + c`, in one instruction where there is one.
#[inline(always)]
fn fused<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FUSED { a.mul_add(b, c) } else { a * b + c }
}
