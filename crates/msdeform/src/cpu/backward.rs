//! The backward pass.
//!
//! A task is one image, one head and some of its levels. It owns everything that it writes: the
//! levels' part of the value gradient, and the gradients of the locations and weights of their
//! samples. So there are no atomics, every sum is taken in the order of the queries, and neither
//! the number of threads nor the number of levels in a task can change a bit.
//!
//! One pass over the samples does all three gradients. For each of the four rows around a sample it
//! takes the dot product with the output's gradient, from which the gradients of location and
//! weight follow, and adds the weighted output gradient to the same row of an `f32` scratch. The scratch
//! is one head, compact and framed by a border that takes what falls outside; it is written out
//! once, in the layout and format of the value tensor.
//!
//! Decoders touch few rows. There the rows added to are marked, and only those are read from the
//! scratch and cleared; the others are written as zeros. The value gradient then crosses the memory
//! bus exactly once, which is all that such a call costs.

use std::ptr::null_mut;

use super::geometry::{CHUNK, Geometry, LevelGeometry, LevelGroup, PIECE};
use super::isa::Kernel;
use super::piece::{Batch, Piece};
use super::placement::{ALL_INSIDE, CORNERS, CornerRows, Placed, Span, convert};
use super::simd::{Simd, Storage};
use super::sink::Sink;
use super::source::{Row, RowScratch, SampleSource};
use super::staging::stage_level;
use super::workspace::{NoScratch, Workspace, grow};
use crate::Element;

/// Queries between asking for locations, weights and gradients, and using them.
const AHEAD: usize = 8;

/// Bytes of a value gradient from which it is written past the caches: so much does not stay in them
/// anyway, and a line that is written whole need not be read first.
const STREAMED_BYTES: usize = 4 << 20;

/// A backward call: checked tensors as pointers, shared by all workers.
pub(crate) struct Backward<'a, T> {
    pub geometry: &'a Geometry,
    /// How the levels are shared out to tasks.
    pub groups: &'a [LevelGroup],
    pub value: *const T,
    pub source: SampleSource,
    pub grad_output: Span,
    pub grad_value: Option<*mut T>,
    /// Where gradients of samples go, if any is asked for.
    pub sink: Option<Sink>,
}

// SAFETY: inputs are only read, and tasks write disjoint parts of the gradients.
unsafe impl<T: Sync> Sync for Backward<'_, T> {}

impl<T> Backward<'_, T> {
    /// One per image, head and group of levels, and one per image and head for the gaps.
    pub(crate) fn tasks(&self) -> usize {
        let gaps = usize::from(!self.geometry.gaps.is_empty());
        self.geometry.batch * self.geometry.heads * (self.groups.len() + gaps)
    }
}

/// One task of a backward call.
pub(crate) struct BackwardTask<'a, T> {
    pub call: &'a Backward<'a, T>,
    pub index: usize,
    pub workspace: &'a mut Workspace,
}

impl<T: Storage> Kernel for BackwardTask<'_, T> {
    type Output = Result<(), NoScratch>;

    #[inline(always)]
    unsafe fn call<S: Simd>(self) -> Result<(), NoScratch> {
        let Self { call, index, workspace } = self;
        let geometry = call.geometry;
        let all_heads = geometry.batch * geometry.heads;
        // All heads of the first levels first: those are usually the larger ones.
        let (group, head) = (index / all_heads, index % all_heads);
        let (n, m) = (head / geometry.heads, head % geometry.heads);
        let Some(group) = call.groups.get(group) else {
            // SAFETY: n and m are below their counts.
            unsafe { clear_gaps(call, n, m) };
            return Ok(());
        };
        let floats = geometry.scratch_rows * geometry.scratch_stride;
        let (value, sink) = (call.grad_value.is_some(), call.sink.as_ref());
        if value {
            grow(&mut workspace.marks, geometry.scratch_rows, 0)?;
        }
        let row_scratch = RowScratch::reserve(&mut workspace.row, geometry)?;
        let (source, grad_output) = (&call.source, call.grad_output);
        let is_nearest = source.is_nearest();
        let sums = if value { workspace.grad_scratch.reserve(floats)? } else { null_mut() };
        let marks = workspace.marks.as_mut_ptr();
        let task = HeadTask {
            geometry,
            source,
            grad_output,
            sink,
            group,
            n,
            m,
            value,
            is_nearest,
            row_scratch,
            sums,
            marks,
        };
        // SAFETY: n and m are below their counts, each scratch holds a head.
        unsafe {
            // Not `add`: without pixels there is no tensor for the head to begin in.
            let values = call.value.wrapping_add(geometry.head_offset(n, m));
            if geometry.staged && sink.is_some() {
                let scratch = workspace.value_scratch.reserve(floats)?;
                for level in &geometry.levels[group.levels.clone()] {
                    stage_level::<S, T>(geometry, level, values, scratch);
                }
                S::enter(Visit::<f32, true> { task: &task, values: scratch });
            } else if sink.is_some() || value {
                S::enter(Visit::<T, false> { task: &task, values });
            }
            if let Some(grad_value) = call.grad_value {
                let head = grad_value.wrapping_add(geometry.head_offset(n, m));
                for level in &geometry.levels[group.levels.clone()] {
                    task.write_out::<S, T>(level, head);
                }
                S::stream_end();
            }
        }
        Ok(())
    }
}

/// Zeroes the pixels that belong to no level.
///
/// # Safety
/// `n` and `m` are below their counts.
unsafe fn clear_gaps<T: Storage>(call: &Backward<'_, T>, n: usize, m: usize) {
    let geometry = call.geometry;
    let Some(grad_value) = call.grad_value else { return };
    for pixel in geometry.gaps.iter().flat_map(|&(start, end)| start..end) {
        let offset = geometry.head_offset(n, m) + pixel * geometry.pixel_stride;
        // SAFETY: gaps lie inside of the tensor, and belong to this task alone.
        unsafe { clear(grad_value.add(offset), geometry.channels) };
    }
}

/// # Safety
/// `row` is valid for `count` elements.
#[inline(always)]
unsafe fn clear<T: Element>(row: *mut T, count: usize) {
    // SAFETY: all bits zero is 0.0 in every format.
    unsafe { std::ptr::write_bytes(row, 0, count) }
}

/// One image, one head and some of its levels.
struct HeadTask<'a> {
    geometry: &'a Geometry,
    source: &'a SampleSource,
    grad_output: Span,
    /// Which gradients are wanted: those of samples, that of the value. Tested at run time: the branches are free, a copy of the
    /// kernel for each case is not.
    sink: Option<&'a Sink>,
    value: bool,
    group: &'a LevelGroup,
    n: usize,
    m: usize,
    /// Whether samples have one corner.
    is_nearest: bool,
    row_scratch: RowScratch,
    /// Sums of the value gradient, one scratch row per pixel and border pixel.
    sums: *mut f32,
    /// One byte per scratch row: whether it has been added to. Only kept where nothing is staged.
    marks: *mut u8,
}

/// Visits all samples of a task: a kernel of its own, because it is the same for staged values of every dtype.
struct Visit<'a, V, const STAGED: bool> {
    task: &'a HeadTask<'a>,
    /// The head's scratch if `STAGED`, else its pixel 0 in the value tensor.
    values: *const V,
}

impl<V: Storage, const STAGED: bool> Kernel for Visit<'_, V, STAGED> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        // SAFETY: passed on.
        unsafe { self.task.run::<S, V, STAGED>(self.values) }
    }
}

/// A placed piece, and where its samples lie.
struct PlacedRows {
    piece: Piece,
    /// In the scratch, in the value tensor, and as row numbers of the scratch.
    scratch: [CornerRows; PIECE],
    source: [CornerRows; PIECE],
    marks: [CornerRows; PIECE],
}

impl PlacedRows {
    const fn new() -> Self {
        Self {
            piece: Piece::new(),
            scratch: [const { CornerRows::new() }; PIECE],
            source: [const { CornerRows::new() }; PIECE],
            marks: [const { CornerRows::new() }; PIECE],
        }
    }
}

/// Of each sample, the products of its corners' values with the gradient of the output.
type Dots = [[[f32; CORNERS]; CHUNK]; PIECE];

impl HeadTask<'_> {
    /// Visits all samples of the task.
    ///
    /// # Safety
    /// `values` is the head's scratch if `STAGED`, else its pixel 0 in the value tensor. The machine
    /// has `S`.
    #[inline(always)]
    unsafe fn run<S: Simd, V: Storage, const STAGED: bool>(&self, values: *const V) {
        let geometry = self.geometry;
        let group = self.group;
        let mut placed = PlacedRows::new();
        for query in (0..geometry.queries).step_by(group.rows) {
            let rows = group.rows.min(geometry.queries - query);
            let batch = Batch { first: self.row(query), rows, of_heads: false };
            for query in query..query + rows {
                // Samples are read when their whole batch is placed.
                self.prefetch_query::<S>(query + AHEAD + group.rows - 1);
            }
            for start in (0..group.samples.len()).step_by(PIECE * CHUNK) {
                // SAFETY: queries and samples are below their counts; pieces follow each other.
                unsafe {
                    let source = (self.source, &self.row_scratch);
                    placed.piece.place::<S>(source, geometry, group, &batch, start);
                    self.find_rows::<STAGED>(&mut placed);
                    self.sum::<S, V, STAGED>(&placed, &batch, values);
                }
            }
        }
    }

    /// The output row of a query.
    #[inline(always)]
    const fn row(&self, query: usize) -> Row {
        Row::new(self.geometry, self.n, query, self.m)
    }

    /// Asks for what a query reads and writes in turn with the other heads.
    #[inline(always)]
    fn prefetch_query<S: Simd>(&self, query: usize) {
        let (geometry, of_group) = (self.geometry, &self.group.samples);
        let row = self.row(query);
        self.source.prefetch::<S>(geometry, row, of_group.clone());
        self.grad_output.prefetch::<S>(row.index * geometry.channels, geometry.channels);
        if let Some(sink) = self.sink {
            sink.prefetch::<S>(row.index * geometry.samples + of_group.start, of_group.len());
        }
    }

    /// Finds the rows of placed samples.
    #[inline(always)]
    fn find_rows<const STAGED: bool>(&self, placed: &mut PlacedRows) {
        let first = placed.piece.start / CHUNK;
        for (chunk, of_chunk) in placed.piece.placed[..placed.piece.chunks].iter().enumerate() {
            let table = &self.group.tables[first + chunk];
            placed.scratch[chunk] = of_chunk.rows(&table.scratch);
            if !STAGED {
                placed.source[chunk] = of_chunk.rows(&table.source);
                if self.value {
                    placed.marks[chunk] = of_chunk.rows(&table.marks);
                }
            }
        }
    }

    /// Adds a placed piece to the gradients.
    ///
    /// # Safety
    /// As for [`HeadTask::run`].
    #[inline(always)]
    unsafe fn sum<S: Simd, V: Storage, const STAGED: bool>(
        &self,
        placed: &PlacedRows,
        batch: &Batch,
        values: *const V,
    ) {
        let mut dots: Dots = [[[0.0; CORNERS]; CHUNK]; PIECE];
        // SAFETY: passed on.
        unsafe {
            for slot in 0..batch.rows {
                if self.value && !STAGED {
                    self.mark(placed, slot);
                }
                let row = batch.row(self.geometry, slot);
                self.channels::<S, V, STAGED>((placed, slot), &mut dots, values, row);
            }
            if let Some(sink) = self.sink {
                self.write_sampling::<S>(placed, batch, &dots, sink);
            }
        }
    }

    /// Marks the rows of the scratch that a query's samples are added to.
    ///
    /// # Safety
    /// The piece is placed, and marks of these rows exist.
    #[inline(always)]
    unsafe fn mark(&self, placed: &PlacedRows, slot: usize) {
        for (chunk, lanes) in placed.piece.lanes_of(slot) {
            let marks = &placed.marks[chunk];
            for lane in lanes {
                for row in [marks.top[lane], marks.bottom[lane]] {
                    // Two neighbours in one store: right is left's successor. SAFETY: passed on.
                    unsafe { self.marks.add(row as usize).cast::<u16>().write_unaligned(0x0101) };
                }
            }
        }
    }

    /// All channels of one query.
    ///
    /// # Safety
    /// As for [`HeadTask::run`].
    #[inline(always)]
    unsafe fn channels<S: Simd, V: Storage, const STAGED: bool>(
        &self,
        placed: (&PlacedRows, usize),
        dots: &mut Dots,
        values: *const V,
        row: Row,
    ) {
        let channels = self.geometry.channels;
        let (full, last) = (channels / S::LANES, channels % S::LANES);
        let mut vector = 0;
        // SAFETY: vectors of channels below their count; the rest is the caller's promise.
        unsafe {
            while full - vector >= 4 {
                self.rows::<S, V, STAGED, 4>(placed, dots, values, (row, vector), S::LANES);
                vector += 4;
            }
            if full - vector >= 2 {
                self.rows::<S, V, STAGED, 2>(placed, dots, values, (row, vector), S::LANES);
                vector += 2;
            }
            if full > vector {
                self.rows::<S, V, STAGED, 1>(placed, dots, values, (row, vector), S::LANES);
                vector += 1;
            }
            if last > 0 {
                self.rows::<S, V, STAGED, 1>(placed, dots, values, (row, vector), last);
            }
        }
    }

    /// `NV` vectors of channels of one query, whose place in the batch is `slot`. `last` is the number of channels in the last of them:
    /// fewer than a vector only where `NV` is 1.
    ///
    /// # Safety
    /// As for [`HeadTask::run`]; `vector` counts vectors of channels.
    #[inline(always)]
    unsafe fn rows<S: Simd, V: Storage, const STAGED: bool, const NV: usize>(
        &self,
        (placed, slot): (&PlacedRows, usize),
        dots: &mut Dots,
        values: *const V,
        (row, vector): (Row, usize),
        last: usize,
    ) {
        let geometry = self.geometry;
        let scratch_stride = geometry.scratch_stride;
        let stride = if STAGED { scratch_stride } else { geometry.pixel_stride };
        let channel = vector * S::LANES;
        let partial = last < S::LANES;
        let values = values.wrapping_add(channel);
        // SAFETY: rows of inside corners lie in the tensor, all rows in the scratches, channels below
        // their count; scratch rows are whole vectors.
        unsafe {
            let upstream = row.index * geometry.channels + channel;
            // Read before the loop: stores to the sums could change them.
            let Self { value, is_nearest, sums, .. } = *self;
            let is_sampling = self.sink.is_some();
            let grad = self.grad_output.load::<S, NV>(upstream, last);
            for (chunk, lanes) in placed.piece.lanes_of(slot) {
                let scratch = placed.scratch.get_unchecked(chunk);
                let rows = if STAGED { scratch } else { placed.source.get_unchecked(chunk) };
                let placed = placed.piece.placed.get_unchecked(chunk);
                let dots = dots.get_unchecked_mut(chunk);
                for lane in lanes {
                    if value {
                        for corner in 0..CORNERS {
                            if corner == 1 && is_nearest {
                                break;
                            }
                            let of_side = if corner < 2 { &scratch.top } else { &scratch.bottom };
                            let row = *of_side.get_unchecked(lane) as usize;
                            let row = row + (corner % 2) * scratch_stride + channel;
                            let weight = S::splat(*placed.weight[corner].get_unchecked(lane));
                            for (v, &grad) in grad.iter().enumerate() {
                                let to = sums.add(row + v * S::LANES);
                                S::store(to, S::mul_add(weight, grad, S::load(to)));
                            }
                        }
                    }
                    if !is_sampling {
                        continue;
                    }
                    let inside =
                        if STAGED { ALL_INSIDE } else { *placed.inside.get_unchecked(lane) };
                    let mut products = [S::splat(0.0); CORNERS];
                    for (corner, product) in products.iter_mut().enumerate() {
                        if inside != ALL_INSIDE && inside & (1 << corner) == 0 {
                            continue;
                        }
                        let of_side = if corner < 2 { &rows.top } else { &rows.bottom };
                        let row = values.wrapping_offset(*of_side.get_unchecked(lane) as isize);
                        let row = row.wrapping_add((corner % 2) * stride);
                        for (v, &grad) in grad.iter().enumerate() {
                            let values = if partial && !STAGED {
                                S::load_first(row, last)
                            } else {
                                S::load(row.add(v * S::LANES))
                            };
                            *product = S::mul_add(grad, values, *product);
                        }
                    }
                    let sums = S::sum_each(products);
                    for (dot, sum) in dots.get_unchecked_mut(lane).iter_mut().zip(sums) {
                        *dot += sum;
                    }
                }
            }
        }
    }

    /// Turns the dot products of a piece into the gradients of its locations and weights.
    ///
    /// # Safety
    /// The samples belong to this task. The machine has `S`.
    #[inline(always)]
    unsafe fn write_sampling<S: Simd>(
        &self,
        placed: &PlacedRows,
        batch: &Batch,
        dots: &Dots,
        sink: &Sink,
    ) {
        let (geometry, group, piece) = (self.geometry, self.group, &placed.piece);
        let mut grad_xy = [[0.0; 2 * CHUNK]; PIECE];
        let mut grad_weight = [[0.0; CHUNK]; PIECE];
        for chunk in 0..piece.chunks {
            let units = sink.units(&group.tables[piece.start / CHUNK + chunk]);
            let (_, weights) = piece.located.chunk(chunk);
            (grad_xy[chunk], grad_weight[chunk]) =
                gradients_of_samples(&piece.placed[chunk], weights, &dots[chunk], units);
        }
        let (grad_xy, grad_weight) = (grad_xy.as_flattened(), grad_weight.as_flattened());
        let first = group.samples.start + piece.start;
        for slot in 0..batch.rows {
            let first = batch.row(geometry, slot).index * geometry.samples + first;
            let lane = slot * piece.samples;
            // SAFETY: the samples are this task's own.
            unsafe {
                let xy = grad_xy.as_ptr().add(2 * lane);
                let weights = grad_weight.as_ptr().add(lane);
                sink.write::<S>(first, piece.samples, xy, weights);
            }
        }
    }

    /// Moves the sums of a level to the value gradient, leaving zeros in the scratch, and writes zeros
    /// to the border that the layout has.
    ///
    /// # Safety
    /// `head` is pixel 0 of this task's head in the value gradient. The machine has `S`.
    #[inline(always)]
    unsafe fn write_out<S: Simd, T: Storage>(&self, level: &LevelGeometry, head: *mut T) {
        let geometry = self.geometry;
        let (channels, stride) = (geometry.channels, geometry.scratch_stride);
        let (border, pitch) = (level.source_border, level.source_pitch);
        let vector_bytes = S::LANES * size_of::<T>();
        let tensor_bytes =
            geometry.batch * geometry.heads * geometry.spatial * channels * size_of::<T>();
        let streamed = tensor_bytes >= STREAMED_BYTES
            && channels.is_multiple_of(S::LANES)
            && head.addr().is_multiple_of(vector_bytes);
        for scratch_line in 0..level.height + 2 {
            for scratch_column in 0..level.scratch_pitch {
                let row = level.scratch_start + scratch_line * level.scratch_pitch + scratch_column;
                let inside = (1..=level.height).contains(&scratch_line)
                    && (1..=level.width).contains(&scratch_column);
                // SAFETY: pixels of the level and of its border, in tensor and scratch.
                unsafe {
                    // The scratch always has a border, the layout may have one.
                    if inside || border > 0 {
                        let pixel = level.source_origin + scratch_line * pitch + scratch_column;
                        let to = head.add((pixel - pitch - 1) * geometry.pixel_stride);
                        let from = self.sums.add(row * stride);
                        let marked = geometry.staged || *self.marks.add(row) != 0;
                        if inside && streamed {
                            for channel in (0..channels).step_by(S::LANES) {
                                let sums =
                                    if marked { S::load(from.add(channel)) } else { S::splat(0.0) };
                                S::stream(to.add(channel), sums);
                            }
                        } else if inside && marked {
                            convert::<S, f32, T>(from, to, channels);
                        } else {
                            clear(to, channels);
                        }
                    }
                    self.forget::<S>(row);
                }
            }
        }
    }

    /// Clears a row of the scratch and its mark, if it may hold anything.
    ///
    /// # Safety
    /// The row lies in the scratch.
    #[inline(always)]
    unsafe fn forget<S: Simd>(&self, row: usize) {
        let geometry = self.geometry;
        // SAFETY: row and mark lie in scratch and marks.
        unsafe {
            let mark = self.marks.add(row);
            if geometry.staged || *mark != 0 {
                let sums = self.sums.add(row * geometry.scratch_stride);
                for channel in (0..geometry.scratch_stride).step_by(S::LANES) {
                    S::store(sums.add(channel), S::splat(0.0));
                }
                *mark = 0;
            }
        }
    }
}

/// The gradients of a chunk's locations and weights. They are returned, and products read even where they do not count, because
/// the compiler turns the loop into vectors only if nothing that it writes can be what it reads.
#[inline(always)]
fn gradients_of_samples(
    placed: &Placed,
    weights: &[f32; CHUNK],
    dots: &[[f32; CORNERS]; CHUNK],
    (width, height): (&[f32; CHUNK], &[f32; CHUNK]),
) -> ([f32; 2 * CHUNK], [f32; CHUNK]) {
    let mut grad_xy = [0.0; 2 * CHUNK];
    let mut grad_weight = [0.0; CHUNK];
    for lane in 0..CHUNK {
        let inside = placed.inside[lane];
        // Chosen, not multiplied by 0: the row of an outside corner may be anything.
        let dot = |corner: usize| {
            let dot = dots[lane][corner];
            if inside & (1 << corner) != 0 { dot } else { 0.0 }
        };
        let (fx, fy) = (placed.fraction_x[lane], placed.fraction_y[lane]);
        let (top_left, top_right, bottom_left, bottom_right) = (dot(0), dot(1), dot(2), dot(3));
        let top = top_left * (1.0 - fx) + top_right * fx;
        let bottom = bottom_left * (1.0 - fx) + bottom_right * fx;
        let slope_x = (top_right - top_left) * (1.0 - fy) + (bottom_right - bottom_left) * fy;
        let slope_y = bottom - top;
        // A sample that does not count has no gradient, even if its weight is not finite.
        let weight = if inside == 0 { 0.0 } else { weights[lane] };
        grad_weight[lane] = top * (1.0 - fy) + bottom * fy;
        grad_xy[2 * lane] = weight * slope_x * width[lane];
        grad_xy[2 * lane + 1] = weight * slope_y * height[lane];
    }
    (grad_xy, grad_weight)
}
