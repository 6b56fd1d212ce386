//! Everything about a problem that the kernels look up: computed once per plan.

use std::ops::Range;

use super::workspace::{NoScratch, grow};
use crate::Problem;

/// Samples placed together: one AVX-512 vector of coordinates, two of AVX2.
pub(crate) const CHUNK: usize = 16;

/// Chunks that are placed before their rows are summed: 64 samples.
pub(crate) const PIECE: usize = 4;

/// The most output rows that are placed together: 16 of four samples, as in `bevformer_tsa`.
pub(crate) const MOST_ROWS: usize = 16;

/// The largest height or width whose pixel numbers are exact in `f32`, and the most elements of one
/// image that 32-bit offsets reach. Problems beyond these go to the reference.
const MAX_SIDE: usize = 1 << 24;
const MAX_OFFSET: usize = i32::MAX as usize;

/// Reuse from which copying a head's values pays: how often the average pixel is read.
///
/// A copy is compact (an interleaved head uses one eighth of the cache's sets), `f32`, and framed
/// by zeros, so the gather loop has neither conversions nor branches. A decoder reads most pixels
/// less than once and would only pay for the copy.
const STAGING_REUSE: usize = 6;

/// What the placement of a sample needs to know of its level, for sixteen samples.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct LaneTable {
    pub width: [f32; CHUNK],
    pub height: [f32; CHUNK],
    /// Where the level lies in the scratch.
    pub scratch: Offsets,
    /// Where it lies in the value tensor as the caller stores it, seen from the head's pixel 0.
    pub source: Offsets,
    /// The number of the scratch's row.
    pub marks: Offsets,
    /// Of calls from offsets: the first number of the sample's reference within those of all rows, and the pixels that an
    /// offset of one moves from a box of size one.
    pub reference: [i32; CHUNK],
    pub box_x: [f32; CHUNK],
    pub box_y: [f32; CHUNK],
}

/// Pixel (line, column) is at element `origin + line * line_step + column * column_step`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Offsets {
    pub origin: [i32; CHUNK],
    pub line_step: [i32; CHUNK],
    pub column_step: i32,
}

impl Offsets {
    /// `origin` and `pitch` in pixels, `stride` in elements per pixel. All products fit: they are
    /// offsets in a scratch or an image of at most `MAX_OFFSET` elements.
    fn set(&mut self, lane: usize, origin: usize, pitch: usize, stride: usize) {
        self.origin[lane] = (origin * stride) as i32;
        self.line_step[lane] = (pitch * stride) as i32;
        self.column_step = stride as i32;
    }
}

/// One level, as the kernels see it.
#[derive(Clone, Debug)]
pub(crate) struct LevelGeometry {
    pub height: usize,
    pub width: usize,
    /// Its samples within those of a query.
    pub samples: Range<usize>,
    /// First row (of the border) in the scratch of all levels.
    pub scratch_start: usize,
    /// Rows from line to line of the scratch: the width and a border on either side.
    pub scratch_pitch: usize,
    /// Pixel (0, 0), line pitch and border of the caller's tensor.
    pub source_origin: usize,
    pub source_pitch: usize,
    pub source_border: usize,
}

/// Some levels that follow each other, and how to place their samples.
#[derive(Clone, Debug)]
pub(crate) struct LevelGroup {
    pub levels: Range<usize>,
    pub samples: Range<usize>,
    /// Output rows whose samples are placed together, side by side in the lanes. Rows of few samples would leave lanes
    /// empty: a row of four samples took as long to place as one of sixteen.
    pub rows: usize,
    /// The tables of those rows, or of one row that takes more than one piece.
    pub tables: Vec<LaneTable>,
}

#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub batch: usize,
    pub heads: usize,
    pub channels: usize,
    pub queries: usize,
    pub samples: usize,
    /// References of a query, in calls from offsets.
    pub references: usize,
    pub rule: Option<crate::Offsets>,
    pub spatial: usize,
    /// Elements from one pixel of a head to the next in the caller's tensor.
    pub pixel_stride: usize,
    pub head_major: bool,
    /// Floats of one scratch row: the channels, rounded up to whole vectors.
    pub scratch_stride: usize,
    pub scratch_rows: usize,
    pub levels: Vec<LevelGeometry>,
    pub all_levels: LevelGroup,
    /// Pixel ranges that belong to no level.
    pub gaps: Vec<(usize, usize)>,
    /// Whether a head's values are copied before they are gathered from.
    pub staged: bool,
}

impl Geometry {
    /// `None` where the problem needs more than 32-bit offsets or `f32` pixel numbers.
    pub(crate) fn new(problem: &Problem, lanes: usize) -> Option<Self> {
        let layout = problem.layout();
        let channels = problem.channels();
        let scratch_stride = channels.checked_next_multiple_of(lanes)?;
        let mut scratch_rows = 0usize;
        let mut levels = Vec::with_capacity(problem.levels().len());
        for (index, level) in problem.levels().iter().enumerate() {
            let (height, width) = (level.height, level.width);
            if height > MAX_SIDE || width > MAX_SIDE {
                return None;
            }
            let scratch_pitch = width + 2;
            let rows = scratch_pitch.checked_mul(height + 2)?;
            levels.push(LevelGeometry {
                height,
                width,
                samples: problem.level_samples(index),
                scratch_start: scratch_rows,
                scratch_pitch,
                source_origin: level.origin(layout),
                source_pitch: level.row_pitch(layout),
                source_border: layout.border(),
            });
            scratch_rows = scratch_rows.checked_add(rows)?;
        }
        if scratch_rows.checked_mul(scratch_stride)? > MAX_OFFSET
            || problem.spatial().checked_mul(problem.pixel_stride())? > MAX_OFFSET
            || problem.references_shape()[2] > MAX_OFFSET / (4 * MOST_ROWS)
        {
            return None;
        }
        let pixels: usize = levels.iter().map(|level| level.height * level.width).sum();
        let is_nearest = problem.offsets().is_some_and(crate::Offsets::is_nearest);
        let reads = problem.queries().saturating_mul(problem.samples()).saturating_mul(4);
        Some(Self {
            batch: problem.batch(),
            heads: problem.heads(),
            channels,
            queries: problem.queries(),
            samples: problem.samples(),
            references: problem.references_shape()[2],
            rule: problem.offsets().copied(),
            spatial: problem.spatial(),
            pixel_stride: problem.pixel_stride(),
            head_major: layout.is_head_major(),
            scratch_stride,
            scratch_rows,
            all_levels: LevelGroup { levels: 0..0, samples: 0..0, rows: 1, tables: Vec::new() },
            levels,
            gaps: gaps(problem),
            // A copy has all corners of a sample; one that only has its nearest pixel must skip the others.
            staged: reads >= STAGING_REUSE.saturating_mul(pixels) && !is_nearest,
        })
    }

    /// Fills the tables of all levels. Apart from the sizes, since these take memory.
    pub(crate) fn place_all_levels(&mut self) -> Result<(), NoScratch> {
        self.all_levels = self.group(0..self.levels.len())?;
        Ok(())
    }

    /// The placement tables of some levels, side by side, and of as many rows as fit into a piece. What lies in the lanes past
    /// the last sample is never used. None for a call without samples: its description may state any number of points, of which
    /// no tensor has to be there.
    pub(crate) fn group(&self, levels: Range<usize>) -> Result<LevelGroup, NoScratch> {
        let chosen = &self.levels[levels.clone()];
        let samples = match (chosen.first(), chosen.last()) {
            (Some(first), Some(last)) => first.samples.start..last.samples.end,
            _ => 0..0,
        };
        // No more than the queries of a head or the heads of a query: a table of a small call is most of its plan.
        let most = self.queries.max(self.heads).clamp(1, MOST_ROWS);
        let rows = (PIECE * CHUNK).checked_div(samples.len()).unwrap_or(1).clamp(1, most);
        let mut tables = Vec::new();
        if self.batch == 0 || self.heads == 0 || self.queries == 0 {
            return Ok(LevelGroup { levels, samples, rows, tables });
        }
        grow(&mut tables, (rows * samples.len()).div_ceil(CHUNK), LaneTable::default())?;
        for (level, index) in chosen.iter().zip(levels.clone()) {
            let each = |row| level.samples.clone().enumerate().map(move |sample| (row, sample));
            for (row, (point, sample)) in (0..rows).flat_map(each) {
                let lane = row * samples.len() + sample - samples.start;
                let (table, lane) = (&mut tables[lane / CHUNK], lane % CHUNK);
                table.width[lane] = level.width as f32;
                table.height[lane] = level.height as f32;
                let pixel_stride = self.pixel_stride;
                table.source.set(lane, level.source_origin, level.source_pitch, pixel_stride);
                let scratch_origin = level.scratch_start + level.scratch_pitch + 1;
                table.scratch.set(lane, scratch_origin, level.scratch_pitch, self.scratch_stride);
                table.marks.set(lane, scratch_origin, level.scratch_pitch, 1);
                if let Some(rule) = &self.rule {
                    let reference = row * self.references + rule.reference(index, point);
                    let reference = reference * rule.kind().components();
                    // Fits: checked when the geometry was made.
                    table.reference[lane] = reference as i32;
                    let scale = rule.scale() / level.samples.len() as f32;
                    table.box_x[lane] = scale * level.width as f32;
                    table.box_y[lane] = scale * level.height as f32;
                }
            }
        }
        Ok(LevelGroup { levels, samples, rows, tables })
    }

    /// Offset of a head's pixel 0 in the caller's value tensor.
    pub(crate) const fn head_offset(&self, batch: usize, head: usize) -> usize {
        if self.head_major {
            (batch * self.heads + head) * self.spatial * self.channels
        } else {
            (batch * self.spatial * self.heads + head) * self.channels
        }
    }
}

/// Pixel ranges of the value tensor that no level covers.
fn gaps(problem: &Problem) -> Vec<(usize, usize)> {
    let layout = problem.layout();
    let mut covered: Vec<(usize, usize)> = problem
        .levels()
        .iter()
        .map(|level| (level.start, level.start + level.footprint(layout)))
        .collect();
    covered.sort_unstable();
    covered.push((problem.spatial(), problem.spatial()));
    let mut next = 0;
    let mut gaps = Vec::new();
    for (start, end) in covered {
        if start > next {
            gaps.push((next, start));
        }
        next = end;
    }
    gaps
}
