//! Inputs from a seed: the same bytes on every machine.
//!
//! The inputs of a workload are drawn by position. Every number is a function of the seed and of its logical place (image,
//! query, head, sample or pixel and channel), never of the memory layout, the thread or the order. Another layout holds the
//! same values elsewhere, and a part of the queries sees what it sees in the whole. Inputs of a case are in `random`.

mod counter;
mod math;
mod points;
pub(crate) mod random;

use half::{bf16, f16};
use msdeform::{Access, DType, Direction, Offsets, Problem, ReferenceKind, Role, ValueLayout};
use rayon::prelude::*;

use crate::workload::{Locations, ReferencePoints, Workload};
use crate::{Buffer, HostTensors};

use counter::Stream;
use points::SampleDrawer;

/// The seed of every published figure.
pub const STANDARD_SEED: u64 = 0x6D73_6465_666F_726D;

/// Everything besides the problem that decides about the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// How the sampling locations are drawn.
    pub locations: Locations,
    /// Where `local` locations lie around.
    pub reference_points: ReferencePoints,
    /// Another seed, other numbers.
    pub seed: u64,
    /// Queries of the whole workload. If the problem has fewer, it gets an evenly spaced part of
    /// them, so that a cheap check still reaches every region of the image.
    pub total_queries: usize,
}

impl Draw {
    /// All queries of a call of a workload with the standard seed.
    pub fn standard(workload: &Workload, problem: &Problem, locations: Locations) -> Self {
        let (reference_points, total_queries) = (workload.reference_points, problem.queries());
        Self { locations, reference_points, seed: STANDARD_SEED, total_queries }
    }

    /// The query of the whole workload that query `index` of `picked` stands for.
    fn logical_query(&self, index: usize, picked: usize) -> usize {
        if picked >= self.total_queries { index } else { index * self.total_queries / picked }
    }
}

/// Ids of the streams; changing one changes every published byte.
mod stream {
    pub(super) const VALUE: u64 = 1;
    pub(super) const WEIGHTS: u64 = 2;
    pub(super) const LOCATIONS: u64 = 3;
    pub(super) const REFERENCE_POINTS: u64 = 4;
    pub(super) const GRAD_OUTPUT: u64 = 5;
    pub(super) const BOX_SIZES: u64 = 6;
}

impl HostTensors {
    /// Draws the inputs of a problem.
    ///
    /// | tensor | drawn |
    /// |---|---|
    /// | value, grad_output | standard normal; zero in borders |
    /// | locations | `(x, y)` in units of the level, as [`Locations`] says |
    /// | weights | softmax of normal noise over the samples of a query and head |
    /// | references | where `local` locations lie around; boxes of all sizes |
    /// | offsets, logits | those that lead to the same samples as locations and weights, but for rounding |
    pub fn generate(problem: &Problem, draw: &Draw) -> Self {
        let operator = problem.operator();
        let read = operator.tensors(Direction::Backward);
        read.filter(|(_, access)| *access == Access::Read)
            .map(|(role, _)| (role, draw_tensor(problem, draw, role)))
            .collect()
    }

    /// The same with NaN in the borders of levels, for backends that must not read them.
    #[must_use]
    pub(crate) fn with_poisoned_borders(mut self, problem: &Problem) -> Self {
        let pixels = pixels(problem);
        let Some(value) = self.get(Role::Value).filter(|_| pixels.contains(&Pixel::Border)) else {
            return self;
        };
        let mut numbers = value.to_f64();
        for (index, row) in numbers.chunks_exact_mut(problem.channels().max(1)).enumerate() {
            let pixel = if problem.layout().is_head_major() {
                index % problem.spatial()
            } else {
                index / problem.heads() % problem.spatial()
            };
            if pixels[pixel] == Pixel::Border {
                row.fill(f64::NAN);
            }
        }
        self.set(Role::Value, &numbers);
        self
    }
}

fn draw_tensor(problem: &Problem, draw: &Draw, role: Role) -> Buffer {
    match role {
        Role::Locations | Role::Offsets => samples(problem, draw),
        Role::Weights => weights(problem, draw),
        Role::References => references(problem, draw),
        Role::Logits => normal(problem, draw, role, stream::WEIGHTS, problem.samples()),
        Role::GradOutput => normal(problem, draw, role, stream::GRAD_OUTPUT, problem.channels()),
        // The only other one that a call reads.
        _ => value(problem, Stream::new(draw.seed, stream::VALUE)),
    }
}

/// Fills a tensor row by row, in parallel. `fill` gets the index of the row and its elements in
/// `f64`; rounding to the dtype happens here, through `f32`: a direct conversion from `f64`
/// to half precision takes that detour on some CPUs only.
fn rows(
    dtype: DType,
    len: usize,
    row_len: usize,
    fill: impl Fn(usize, &mut [f64]) + Sync,
) -> Buffer {
    fn typed<T: Send>(
        elements: &mut [T],
        row_len: usize,
        fill: impl Fn(usize, &mut [f64]) + Sync,
        rounded: impl Fn(f32) -> T + Sync,
    ) {
        // Small rows are handed out in bundles: a task should be worth its overhead.
        let rows_per_task = (8192 / row_len).max(1);
        elements.par_chunks_mut(row_len * rows_per_task).enumerate().for_each_init(
            || vec![0.0; row_len],
            |exact, (task, bundle)| {
                for (row, stored) in bundle.chunks_mut(row_len).enumerate() {
                    fill(task * rows_per_task + row, exact);
                    for (to, from) in stored.iter_mut().zip(exact.iter()) {
                        // The bits of a converted NaN are up to the platform; these are not.
                        *to = rounded(if from.is_nan() { f32::NAN } else { *from as f32 });
                    }
                }
            },
        );
    }
    let mut tensor = Buffer::poisoned(dtype, len);
    if len > 0 {
        // Not through `f64` again: `half` rounds some numbers between two of bf16 to the wrong one.
        match dtype {
            DType::F32 => typed(tensor.elements_mut(), row_len, fill, |x: f32| x),
            DType::F16 => typed(tensor.elements_mut(), row_len, fill, f16::from_f32),
            DType::Bf16 => typed(tensor.elements_mut(), row_len, fill, bf16::from_f32),
            DType::F64 => typed(tensor.elements_mut(), row_len, fill, f64::from),
        }
    }
    tensor
}

/// Standard normal numbers for a whole row; each row has its own positions in the stream.
fn normal_row(stream: Stream, row: usize, out: &mut [f64]) {
    let pairs = out.len().div_ceil(2);
    for (pair, two) in out.chunks_mut(2).enumerate() {
        let (first, second) = stream.normal_pair((row * pairs + pair) as u64);
        two[0] = first;
        if let Some(last) = two.get_mut(1) {
            *last = second;
        }
    }
}

fn value(problem: &Problem, stream: Stream) -> Buffer {
    let (heads, spatial) = (problem.heads(), problem.spatial());
    let pixel_at = pixels(problem);
    let pixels = pixel_at.iter().filter(|pixel| matches!(pixel, Pixel::Owned(_))).count();
    rows(problem.dtype(), problem.value_len(), problem.channels(), |row, out| {
        let (batch, slot, head) = match problem.layout() {
            ValueLayout::Interleaved => (row / heads / spatial, row / heads % spatial, row % heads),
            ValueLayout::HeadMajor | ValueLayout::HeadMajorPadded => {
                (row / spatial / heads, row % spatial, row / spatial % heads)
            }
        };
        match pixel_at[slot] {
            Pixel::Owned(pixel) => normal_row(stream, (batch * pixels + pixel) * heads + head, out),
            Pixel::Border | Pixel::Unowned => out.fill(0.0),
        }
    })
}

/// A place of the spatial axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pixel {
    /// A pixel of a level, counted over all levels.
    Owned(usize),
    /// Padding around a level.
    Border,
    /// Belongs to no level.
    Unowned,
}

/// What lies at each place of the spatial axis.
fn pixels(problem: &Problem) -> Vec<Pixel> {
    let layout = problem.layout();
    let mut pixels = vec![Pixel::Unowned; problem.spatial()];
    let mut count = 0;
    for level in problem.levels() {
        pixels[level.start..][..level.footprint(layout)].fill(Pixel::Border);
        for line in 0..level.height {
            let start = level.origin(layout) + line * level.row_pitch(layout);
            for pixel in &mut pixels[start..start + level.width] {
                *pixel = Pixel::Owned(count);
                count += 1;
            }
        }
    }
    pixels
}

/// What an offset of 1 moves a sample by along a side of `size` pixels; `side` is the length of its box.
fn offset_unit(rule: &Offsets, size: usize, side: f64, points: usize) -> f64 {
    match rule.kind() {
        ReferenceKind::Point => 1.0 / size as f64,
        ReferenceKind::Box => side * (f64::from(rule.scale()) / points as f64),
    }
}

/// Splits a row of `[N, Lq, M, ...]` into image, query of the whole workload and head.
fn place(problem: &Problem, draw: &Draw, row: usize) -> (usize, usize, usize) {
    let (heads, queries) = (problem.heads(), problem.queries());
    let query = draw.logical_query(row / heads % queries, queries);
    (row / heads / queries, query, row % heads)
}

/// The row that a place has in the whole workload: its position in a stream.
fn logical_row(problem: &Problem, draw: &Draw, row: usize) -> usize {
    let (batch, query, head) = place(problem, draw, row);
    (batch * draw.total_queries.max(problem.queries()) + query) * problem.heads() + head
}

fn weights(problem: &Problem, draw: &Draw) -> Buffer {
    let stream = Stream::new(draw.seed, stream::WEIGHTS);
    rows(problem.sampling_dtype(), problem.weights_len(), problem.samples(), |row, out| {
        normal_row(stream, logical_row(problem, draw, row), out);
        let mut sum = 0.0;
        for logit in out.iter_mut() {
            *logit = math::exp(*logit);
            sum += *logit;
        }
        for weight in out.iter_mut() {
            *weight /= sum;
        }
    })
}

/// Logits, or the gradient of the output.
fn normal(problem: &Problem, draw: &Draw, role: Role, id: u64, row_len: usize) -> Buffer {
    let stream = Stream::new(draw.seed, id);
    rows(problem.format_of(role), problem.len_of(role), row_len, |row, out| {
        normal_row(stream, logical_row(problem, draw, row), out);
    })
}

/// Locations, or the offsets that lead there.
fn samples(problem: &Problem, draw: &Draw) -> Buffer {
    let drawer = SampleDrawer::new(problem, draw);
    let row_len = 2 * problem.samples();
    rows(problem.sampling_dtype(), problem.locations_len(), row_len, |row, out| {
        let place = place(problem, draw, row);
        drawer.draw_row(place, logical_row(problem, draw, row), out);
        // Does nothing where there are no references.
        drawer.make_offsets((place.0, place.1), out);
    })
}

fn references(problem: &Problem, draw: &Draw) -> Buffer {
    let drawer = SampleDrawer::new(problem, draw);
    let [_, queries, per_query, components] = problem.references_shape();
    let row_len = per_query * components;
    rows(problem.reference_dtype(), problem.references_len(), row_len, |row, out| {
        let query = draw.logical_query(row % queries, queries);
        drawer.draw_references((row / queries, query), out);
    })
}

#[cfg(test)]
mod tests;
