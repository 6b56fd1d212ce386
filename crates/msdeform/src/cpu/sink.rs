//! Where the gradients of samples go: to locations and weights directly, or on to offsets, logits and references.
//!
//! The softmax's gradient needs the sum over all levels of a head, and that of a reference the sum over all heads. Other tasks
//! compute those terms. So the first pass keeps the gradients of samples in `f32`, and a second pass over the queries, each as
//! a whole, makes the requested gradients of them. No sum depends on how the first pass was divided among threads.

use std::ops::Range;

use super::geometry::{CHUNK, Geometry, LaneTable};
use super::isa::Kernel;
use super::placement::{Located, SpanMut};
use super::simd::Simd;
use super::source::{OffsetSource, Row, RowScratch, SampleSource};
use super::workspace::{AlignedFloats, NoScratch, Workspace};
use crate::call::Tensors;
use crate::view::Expected;
use crate::{Error, Problem, ReferenceKind, Role};

/// The gradients of samples that a backward call writes, of either operator.
pub(crate) struct SampleGradients {
    locations: Option<SpanMut>,
    weights: Option<SpanMut>,
    references: Option<SpanMut>,
    offsets: Option<SpanMut>,
    logits: Option<SpanMut>,
}

impl SampleGradients {
    /// Checks and takes the tensors that the call writes; none for roles of the other operator.
    pub(crate) fn of(problem: &Problem, tensors: &mut Tensors<'_, '_>) -> Result<Self, Error> {
        let mut write = |role| {
            let to = tensors.result(role);
            to.map(|to| SpanMut::of(to, &Expected::new(problem, role))).transpose()
        };
        Ok(Self {
            locations: write(Role::GradLocations)?,
            weights: write(Role::GradWeights)?,
            references: write(Role::GradReferences)?,
            offsets: write(Role::GradOffsets)?,
            logits: write(Role::GradLogits)?,
        })
    }

    /// Where the first pass writes. The buffer grows if a second pass reads from it.
    pub(crate) fn sink(
        &self,
        samples: usize,
        kept: &mut AlignedFloats,
    ) -> Result<Option<Sink>, NoScratch> {
        let Self { locations, weights, references, offsets, logits } = *self;
        if references.is_some() || offsets.is_some() || logits.is_some() {
            let xy = kept.reserve(3 * samples)?;
            return Ok(Some(Sink::Kept { xy, weights: xy.wrapping_add(2 * samples) }));
        }
        let has_any = locations.is_some() || weights.is_some();
        Ok(has_any.then_some(Sink::Samples { locations, weights }))
    }

    /// The second pass, if the first one wrote to the buffer.
    pub(crate) const fn finish<'a>(
        &self,
        geometry: &'a Geometry,
        source: &'a SampleSource,
        sink: Option<Sink>,
    ) -> Option<Finish<'a>> {
        let (Some(Sink::Kept { xy, weights }), SampleSource::Offsets(source)) = (sink, source)
        else {
            return None;
        };
        Some(Finish {
            geometry,
            source,
            kept_xy: xy,
            kept_weights: weights,
            grad_references: self.references,
            grad_offsets: self.offsets,
            grad_logits: self.logits,
        })
    }
}

/// Where a backward pass writes gradients of samples.
#[derive(Clone, Copy)]
pub(crate) enum Sink {
    /// The caller's tensors.
    Samples { locations: Option<SpanMut>, weights: Option<SpanMut> },
    /// A buffer: by pixel coordinates, and by the weights.
    Kept { xy: *mut f32, weights: *mut f32 },
}

const ONES: [f32; CHUNK] = [1.0; CHUNK];

impl Sink {
    /// What derivatives by pixel coordinates are multiplied with.
    #[inline(always)]
    pub(crate) fn units<'a>(&self, table: &'a LaneTable) -> (&'a [f32; CHUNK], &'a [f32; CHUNK]) {
        match self {
            Self::Samples { .. } => (&table.width, &table.height),
            Self::Kept { .. } => (&ONES, &ONES),
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(&self, first: usize, samples: usize) {
        let (locations, weights) = self.spans();
        if let Some(to) = locations {
            to.prefetch::<S>(2 * first, 2 * samples);
        }
        if let Some(to) = weights {
            to.prefetch::<S>(first, samples);
        }
    }

    /// Writes the gradients of `lanes` samples from `first` on, counted over the whole call.
    ///
    /// # Safety
    /// They belong to the caller alone, and both lists have their gradients. The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn write<S: Simd>(
        &self,
        first: usize,
        lanes: usize,
        xy: *const f32,
        weights: *const f32,
    ) {
        let (to_locations, to_weights) = self.spans();
        // SAFETY: passed on.
        unsafe {
            if let Some(to) = to_locations {
                to.write::<S>(2 * first, xy, 2 * lanes);
            }
            if let Some(to) = to_weights {
                to.write::<S>(first, weights, lanes);
            }
        }
    }

    #[inline(always)]
    const fn spans(&self) -> (Option<SpanMut>, Option<SpanMut>) {
        match *self {
            Self::Samples { locations, weights } => (locations, weights),
            Self::Kept { xy, weights } => {
                (Some(SpanMut::floats(xy)), Some(SpanMut::floats(weights)))
            }
        }
    }
}

/// The second pass of a fused backward call.
pub(crate) struct Finish<'a> {
    pub geometry: &'a Geometry,
    pub source: &'a OffsetSource,
    /// What the first pass kept.
    pub kept_xy: *const f32,
    pub kept_weights: *const f32,
    pub grad_references: Option<SpanMut>,
    pub grad_offsets: Option<SpanMut>,
    pub grad_logits: Option<SpanMut>,
}

// SAFETY: inputs are only read, and workers write the gradients of disjoint queries.
unsafe impl Sync for Finish<'_> {}

/// One worker's part of it: some queries, counted over all images.
pub(crate) struct FinishPart<'a> {
    pub call: &'a Finish<'a>,
    pub queries: Range<usize>,
    pub workspace: &'a mut Workspace,
}

impl Kernel for FinishPart<'_> {
    type Output = Result<(), NoScratch>;

    #[inline(always)]
    unsafe fn call<S: Simd>(self) -> Result<(), NoScratch> {
        let Self { call, queries, workspace } = self;
        let geometry = call.geometry;
        let numbers = geometry.references * call.source.rule.kind().components();
        let scratch = RowScratch::reserve(&mut workspace.row, geometry)?;
        let sums = workspace.sums.reserve(numbers)?;
        for query in queries {
            // SAFETY: the sums have room for a query's references, rows are below their count.
            unsafe {
                let sums = std::slice::from_raw_parts_mut(sums, numbers);
                sums.fill(0.0);
                for m in 0..geometry.heads {
                    let row = Row::numbered(geometry, query * geometry.heads + m);
                    call.source.begin_row::<S>(geometry, row, &scratch);
                    call.logits::<S>(row, &scratch);
                    if call.grad_offsets.is_some() || call.grad_references.is_some() {
                        call.offsets::<S>(row, &scratch, sums);
                    }
                }
                if let Some(to) = call.grad_references {
                    to.write::<S>(query * numbers, sums.as_ptr(), numbers);
                }
            }
        }
        Ok(())
    }
}

impl Finish<'_> {
    /// The gradients of a row's logits.
    ///
    /// # Safety
    /// The row belongs to the caller and has been begun. The machine has `S`.
    #[inline(always)]
    unsafe fn logits<S: Simd>(&self, row: Row, scratch: &RowScratch) {
        let Some(to) = self.grad_logits else { return };
        let samples = self.geometry.samples;
        let first = row.index * samples;
        // SAFETY: a row of the buffer, of the gradient, and of the scratch.
        unsafe {
            let kept = self.kept_weights.add(first);
            if !self.source.rule.has_softmax() {
                return to.write::<S>(first, kept, samples);
            }
            let kept = std::slice::from_raw_parts(kept, samples);
            let weights = std::slice::from_raw_parts(scratch.weights, samples);
            let mut mean = [0.0; CHUNK];
            for (weights, kept) in weights.chunks(CHUNK).zip(kept.chunks(CHUNK)) {
                for ((sum, &weight), &grad) in mean.iter_mut().zip(weights).zip(kept) {
                    *sum += weight * grad;
                }
            }
            let mean = mean.into_iter().sum::<f32>();
            for start in (0..samples).step_by(CHUNK) {
                let lanes = (samples - start).min(CHUNK);
                let mut grads = [0.0; CHUNK];
                for lane in 0..lanes {
                    grads[lane] = weights[start + lane] * (kept[start + lane] - mean);
                }
                to.write::<S>(first + start, grads.as_ptr(), lanes);
            }
        }
    }

    /// The gradients of a row's offsets, and what they add to those of the references.
    ///
    /// # Safety
    /// The row belongs to the caller and has been begun. The machine has `S`.
    #[inline(always)]
    unsafe fn offsets<S: Simd>(&self, row: Row, scratch: &RowScratch, sums: &mut [f32]) {
        let (geometry, rule) = (self.geometry, &self.source.rule);
        let is_box = rule.kind() == ReferenceKind::Box;
        let mut located = Located::new();
        for start in (0..geometry.samples).step_by(CHUNK) {
            let lanes = (geometry.samples - start).min(CHUNK);
            let table = &geometry.all_levels.tables[start / CHUNK];
            let first = row.index * geometry.samples + start;
            let mut grads = [0.0; 2 * CHUNK];
            // SAFETY: a row of the buffer and of the gradient; tables name references of a query.
            unsafe {
                let xy = located.xy.as_mut_ptr();
                self.source.read_offsets::<S>(geometry, row, (start, lanes), xy);
                let kept = std::slice::from_raw_parts(self.kept_xy.add(2 * first), 2 * lanes);
                // Nearest pixels have no slope, and what was kept of them means nothing.
                for lane in (0..lanes).take_while(|_| !rule.is_nearest()) {
                    let reference = table.reference[lane] as usize;
                    for (axis, (size, box_scale)) in [
                        (table.width[lane], table.box_x[lane]),
                        (table.height[lane], table.box_y[lane]),
                    ]
                    .into_iter()
                    .enumerate()
                    {
                        let grad = kept[2 * lane + axis];
                        // What does not count passes nothing on, even where its offset is infinite.
                        let times = |by: f32| if grad == 0.0 { 0.0 } else { grad * by };
                        sums[reference + axis] += grad * size;
                        grads[2 * lane + axis] = grad;
                        if is_box {
                            let side = *scratch.references.add(reference + 2 + axis);
                            grads[2 * lane + axis] = times(side * box_scale);
                            let by_side = located.xy[2 * lane + axis] * box_scale;
                            sums[reference + 2 + axis] += times(by_side);
                        }
                    }
                }
                if let Some(to) = self.grad_offsets {
                    to.write::<S>(2 * first, grads.as_ptr(), 2 * lanes);
                }
            }
        }
    }
}
