//! The forward pass.
//!
//! A unit of work is one query and head: its samples are placed, up to 64 at a time and together with those of the following
//! units, then the four rows of each are summed in registers. Two ways to get at the rows:
//!
//! - *staged* (encoders): the worker copies one head into its scratch and takes all queries from
//!   there. No corner needs a test, because the scratch has a border; rows of neighbouring pixels
//!   compete for no cache set; half precision is converted once and not 64 times.
//! - *direct* (decoders): rows are read where they lie, all heads of a query together, and corners
//!   outside of the level are left out one by one. Hardly a row is in a cache. Asking for the next
//!   unit's rows ahead of time was tried on one two-core machine and lost (1.0 ms against 0.7).
//!
//! Workers own contiguous ranges of units, so that each stages as few heads as possible.
//!
//! Two ideas were tried on one thread of a Zen 5, in a build that was slower than this one, and left out: visiting an
//! encoder's queries in columns of sixteen pixels (`bevformer_tsa` in `f32` 13.2 ms against 13.1, `ddetr_enc` 11.5 against
//! 11.8; the backward 3 % slower), and writing the output past the caches (12.1 ms and 11.8, but `f16` 3 % slower).

use std::ops::Range;

use super::geometry::{CHUNK, Geometry, PIECE};
use super::isa::Kernel;
use super::piece::{Batch, Piece};
use super::placement::{ALL_INSIDE, CORNERS, CornerRows, SpanMut, prefetch, store};
use super::simd::{Simd, Storage};
use super::source::{Row, RowScratch, SampleSource};
use super::staging::stage_level;
use super::workspace::{NoScratch, Workspace};

/// Queries between asking for locations, weights and output, and using them. All three are spread
/// over the heads, which the hardware's prefetchers follow badly: without this a pass took 46 ms
/// instead of 26 (`ddetr_enc`, one thread).
const AHEAD: usize = 8;

/// A forward call: checked tensors as pointers, shared by all workers.
pub(crate) struct Forward<'a, T> {
    pub geometry: &'a Geometry,
    pub value: *const T,
    pub source: SampleSource,
    pub output: SpanMut,
}

// SAFETY: inputs are only read, and workers write disjoint rows of the output.
unsafe impl<T: Sync> Sync for Forward<'_, T> {}

impl<T> Forward<'_, T> {
    /// How many units there are to be shared out.
    pub(crate) const fn units(&self) -> usize {
        let geometry = self.geometry;
        let rows = geometry.batch * geometry.queries;
        if geometry.staged { rows * geometry.heads } else { rows }
    }

    /// How many tasks the units are cut into. It is not known how many of the workers will come, so there are several for
    /// each. If heads are staged, no task has units of two heads.
    pub(crate) fn tasks(&self, workers: usize) -> usize {
        const TASKS_PER_WORKER: usize = 4;
        let wanted = workers.max(1).saturating_mul(TASKS_PER_WORKER);
        let Geometry { batch, heads, queries, staged, .. } = *self.geometry;
        if staged {
            let heads = batch * heads;
            heads * wanted.div_ceil(heads.max(1)).clamp(1, queries.max(1))
        } else {
            wanted.min(self.units())
        }
    }

    /// The units of a task, of so many.
    pub(crate) fn task(&self, index: usize, tasks: usize) -> Range<usize> {
        // In 128 bits: the product may exceed the address space.
        let bound = |task: usize| (self.units() as u128 * task as u128 / tasks as u128) as usize;
        bound(index)..bound(index + 1)
    }
}

/// One worker's part of a forward call.
pub(crate) struct ForwardPart<'a, T> {
    pub call: &'a Forward<'a, T>,
    pub units: Range<usize>,
    pub workspace: &'a mut Workspace,
}

impl<T: Storage> Kernel for ForwardPart<'_, T> {
    type Output = Result<(), NoScratch>;

    #[inline(always)]
    unsafe fn call<S: Simd>(self) -> Result<(), NoScratch> {
        let Self { call, units, workspace } = self;
        let geometry = call.geometry;
        let sums = workspace.sums.reserve(geometry.scratch_stride)?;
        let row_scratch = RowScratch::reserve(&mut workspace.row, geometry)?;
        let source = &call.source;
        // SAFETY: the units are below their count. An output has the values' dtype if it is not in `f32`.
        unsafe {
            match call.output.single() {
                Some(output) => {
                    let rows = Rows { geometry, source, output, sums, row_scratch };
                    call.compute::<S, f32>(&rows, units, workspace)
                }
                None => {
                    let output = call.output.address().cast::<T>();
                    let rows = Rows { geometry, source, output, sums, row_scratch };
                    call.compute::<S, T>(&rows, units, workspace)
                }
            }
        }
    }
}

impl<T: Storage> Forward<'_, T> {
    /// # Safety
    /// The units are below their count, the machine has `S`.
    #[inline(always)]
    unsafe fn compute<S: Simd, O: Storage>(
        &self,
        rows: &Rows<'_, O>,
        units: Range<usize>,
        workspace: &mut Workspace,
    ) -> Result<(), NoScratch> {
        let geometry = self.geometry;
        // SAFETY: passed on; the scratch has room for a head.
        unsafe {
            if geometry.staged {
                let floats = geometry.scratch_rows * geometry.scratch_stride;
                let scratch = workspace.value_scratch.reserve(floats)?;
                self.staged::<S, O>(rows, units, scratch, &mut workspace.staged_head);
            } else {
                self.direct::<S, O>(rows, units);
            }
        }
        Ok(())
    }

    /// Units are `(image, head, query)`, in this order.
    ///
    /// # Safety
    /// They are below their count, the scratch has room for a head and holds `staged_head`, the machine has `S`.
    #[inline(always)]
    unsafe fn staged<S: Simd, O: Storage>(
        &self,
        rows: &Rows<'_, O>,
        units: Range<usize>,
        scratch: *mut f32,
        staged_head: &mut Option<usize>,
    ) {
        let geometry = self.geometry;
        let mut next = units.start;
        while next < units.end {
            let (head, query) = (next / geometry.queries, next % geometry.queries);
            let (n, m) = (head / geometry.heads, head % geometry.heads);
            let queries = (units.end - next).min(geometry.queries - query);
            let first = Row::new(geometry, n, query, m);
            // SAFETY: image, head and queries are below their counts; the scratch has been staged.
            unsafe {
                if *staged_head != Some(head) {
                    // Not `add`: without pixels there is no tensor for the head to begin in.
                    let from = self.value.wrapping_add(geometry.head_offset(n, m));
                    for level in &geometry.levels {
                        stage_level::<S, T>(geometry, level, from, scratch);
                    }
                    *staged_head = Some(head);
                }
                S::enter(StagedQueries { rows: *rows, first, queries, scratch });
            }
            next += queries;
        }
    }

    /// Units are `(image, query)`; all heads of each are computed.
    ///
    /// # Safety
    /// They are below their count, the machine has `S`.
    #[inline(always)]
    unsafe fn direct<S: Simd, O: Storage>(&self, rows: &Rows<'_, O>, units: Range<usize>) {
        let geometry = self.geometry;
        let next_head = geometry.head_offset(0, 1);
        let mut placed = PlacedRows::new();
        for unit in units {
            let (n, query) = (unit / geometry.queries, unit % geometry.queries);
            for m in (0..geometry.heads).step_by(geometry.all_levels.rows) {
                let first = Row::new(geometry, n, query, m);
                let count = geometry.all_levels.rows.min(geometry.heads - m);
                let batch = Batch { first, rows: count, of_heads: true };
                // Not `add`, as above.
                let head = self.value.wrapping_add(geometry.head_offset(n, m));
                // SAFETY: image, query and heads are below their counts.
                unsafe { rows.compute::<S, T, false>(&mut placed, &batch, (head, next_head)) };
            }
        }
    }
}

/// Queries of a head whose values have been staged: a kernel of its own, because it is the same for values of every dtype.
struct StagedQueries<'a, O> {
    /// A copy, which stores through pointers cannot change.
    rows: Rows<'a, O>,
    first: Row,
    queries: usize,
    scratch: *const f32,
}

impl<O: Storage> Kernel for StagedQueries<'_, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Self { rows, first, queries, scratch } = self;
        let geometry = rows.geometry;
        let mut placed = PlacedRows::new();
        for start in (0..queries).step_by(geometry.all_levels.rows) {
            let count = geometry.all_levels.rows.min(queries - start);
            let first = first.ahead(geometry, start);
            let batch = Batch { first, rows: count, of_heads: false };
            // SAFETY: the caller promises rows below their count, and the scratch.
            unsafe { rows.compute::<S, f32, true>(&mut placed, &batch, (scratch, 0)) };
        }
    }
}

/// What computes output rows: one query and head each.
#[derive(Clone, Copy)]
struct Rows<'a, O> {
    geometry: &'a Geometry,
    source: &'a SampleSource,
    output: *mut O,
    /// Running sums between pieces.
    sums: *mut f32,
    row_scratch: RowScratch,
}

/// A placed piece, and where its samples lie.
struct PlacedRows {
    piece: Piece,
    corners: [CornerRows; PIECE],
    /// Whether it is the first of its row, and the last: sums of others are carried over.
    first: bool,
    last: bool,
}

impl PlacedRows {
    const fn new() -> Self {
        let corners = [const { CornerRows::new() }; PIECE];
        Self { piece: Piece::new(), corners, first: true, last: true }
    }
}

impl<O: Storage> Rows<'_, O> {
    /// Computes the rows of a batch. `base` is what [`Rows::channels`] takes for the first one, and how much is added to it for
    /// each of the others.
    ///
    /// # Safety
    /// They are at most as many as are placed together, and below their counts. The rest is as for [`Rows::channels`].
    #[inline(always)]
    unsafe fn compute<S: Simd, V: Storage, const STAGED: bool>(
        &self,
        placed: &mut PlacedRows,
        batch: &Batch,
        (base, next_base): (*const V, usize),
    ) {
        let geometry = self.geometry;
        let (samples, channels) = (geometry.samples, geometry.channels);
        let group = &geometry.all_levels;
        let mut start = 0;
        // At least once, so that the output is written.
        loop {
            // SAFETY: rows and samples are below their counts; pieces follow each other.
            unsafe {
                let source = (self.source, &self.row_scratch);
                placed.piece.place::<S>(source, geometry, group, batch, start);
                for (chunk, of_chunk) in
                    placed.piece.placed[..placed.piece.chunks].iter().enumerate()
                {
                    let table = &group.tables[start / CHUNK + chunk];
                    let offsets = if STAGED { &table.scratch } else { &table.source };
                    placed.corners[chunk] = of_chunk.rows(offsets);
                }
                placed.first = start == 0;
                start += placed.piece.samples;
                placed.last = start == samples;
                for slot in 0..batch.rows {
                    let row = batch.row(geometry, slot);
                    if STAGED && placed.first {
                        // Samples are read when their whole batch is placed, so they are needed earlier than the output.
                        let source = row.ahead(geometry, AHEAD + group.rows - 1);
                        self.source.prefetch::<S>(geometry, source, 0..samples);
                        let output = row.ahead(geometry, AHEAD).index;
                        let output = self.output.wrapping_add(output * channels);
                        prefetch::<S>(output.cast(), channels * size_of::<O>());
                    }
                    let base = base.wrapping_add(slot * next_base);
                    self.channels::<S, V, STAGED>(placed, base, row.index, slot);
                }
            }
            if placed.last {
                return;
            }
        }
    }

    /// Sums all channels of an output row over its placed samples, as many vectors at a time as registers allow. `slot` is
    /// its place in the batch.
    ///
    /// # Safety
    /// `row` is below the number of output rows; `base` is the scratch of its head if `STAGED`, else
    /// the head's pixel 0 in the value tensor. The machine has `S`.
    #[inline(always)]
    unsafe fn channels<S: Simd, V: Storage, const STAGED: bool>(
        &self,
        placed: &PlacedRows,
        base: *const V,
        row: usize,
        slot: usize,
    ) {
        let channels = self.geometry.channels;
        let full = channels / S::LANES;
        let mut vector = 0;
        // SAFETY: row and channels are below their counts; the rest is the caller's promise.
        unsafe {
            let output = row * channels;
            while full - vector >= 8 {
                self.gather::<S, V, STAGED, 8>((placed, slot), base, (vector, output), S::LANES);
                vector += 8;
            }
            if full - vector >= 4 {
                self.gather::<S, V, STAGED, 4>((placed, slot), base, (vector, output), S::LANES);
                vector += 4;
            }
            if full - vector >= 2 {
                self.gather::<S, V, STAGED, 2>((placed, slot), base, (vector, output), S::LANES);
                vector += 2;
            }
            if full > vector {
                self.gather::<S, V, STAGED, 1>((placed, slot), base, (vector, output), S::LANES);
                vector += 1;
            }
            if !channels.is_multiple_of(S::LANES) {
                self.gather::<S, V, STAGED, 1>(
                    (placed, slot),
                    base,
                    (vector, output),
                    channels % S::LANES,
                );
            }
        }
    }

    /// Sums `NV` vectors of channels over the placed samples of a row. `last` is the number of channels in
    /// the last of them: fewer than a vector only where `NV` is 1. `output` is where the row starts.
    ///
    /// # Safety
    /// As for [`Rows::channels`]; `vector` counts vectors of channels.
    #[inline(always)]
    unsafe fn gather<S: Simd, V: Storage, const STAGED: bool, const NV: usize>(
        &self,
        (placed, slot): (&PlacedRows, usize),
        base: *const V,
        (vector, output): (usize, usize),
        last: usize,
    ) {
        // Enough independent sums to hide the latency of a multiply-add (4 cycles, 2 a cycle).
        let sets = if NV >= 8 {
            1
        } else if NV == 4 {
            2
        } else {
            CORNERS
        };
        let first_channel = vector * S::LANES;
        let partial = last < S::LANES;
        // SAFETY: rows of inside corners lie in the tensor, all rows in the scratch, channels below
        // their count; the scratch and the sums have whole vectors.
        unsafe {
            let stride =
                if STAGED { self.geometry.scratch_stride } else { self.geometry.pixel_stride };
            let base = base.wrapping_add(first_channel);
            let mut sums = [[S::splat(0.0); NV]; CORNERS];
            if !placed.first {
                for (v, sum) in sums[0].iter_mut().enumerate() {
                    *sum = S::load(self.sums.add(first_channel + v * S::LANES));
                }
            }
            for (chunk, lanes) in placed.piece.lanes_of(slot) {
                let rows = placed.corners.get_unchecked(chunk);
                let placed = placed.piece.placed.get_unchecked(chunk);
                for lane in lanes {
                    let top = base.wrapping_offset(*rows.top.get_unchecked(lane) as isize);
                    let bottom = base.wrapping_offset(*rows.bottom.get_unchecked(lane) as isize);
                    let inside =
                        if STAGED { ALL_INSIDE } else { *placed.inside.get_unchecked(lane) };
                    for corner in 0..CORNERS {
                        if inside != ALL_INSIDE && inside & (1 << corner) == 0 {
                            continue;
                        }
                        let row = if corner < 2 { top } else { bottom };
                        let row = row.wrapping_add((corner % 2) * stride);
                        let weight = S::splat(*placed.weight[corner].get_unchecked(lane));
                        for (v, sum) in sums[corner % sets].iter_mut().enumerate() {
                            let values = if partial && !STAGED {
                                S::load_first(row, last)
                            } else {
                                S::load(row.add(v * S::LANES))
                            };
                            *sum = S::mul_add(weight, values, *sum);
                        }
                    }
                }
            }
            let [mut total, others @ ..] = sums;
            for (v, sum) in total.iter_mut().enumerate() {
                for set in &others[..sets - 1] {
                    *sum = S::add(*sum, set[v]);
                }
            }
            if placed.last {
                store::<S, O, NV>(self.output.add(output + first_channel), &total, last);
            } else {
                for (v, &sum) in total.iter().enumerate() {
                    S::store(self.sums.add(first_channel + v * S::LANES), sum);
                }
            }
        }
    }
}
