//! Up to 64 samples that are placed together.
//!
//! Where rows have few samples, those of several rows share the lanes of a chunk. All chunks of a piece are placed before any
//! of its samples is used: what one chunk waits for, the others compute in the meantime.

use std::ops::Range;

use super::geometry::{CHUNK, Geometry, LevelGroup, PIECE};
use super::isa::Kernel;
use super::placement::{Located, Placed};
use super::simd::Simd;
use super::source::{Row, RowScratch, SampleSource, Source};

/// Output rows whose samples are placed together: some queries of a head, or some heads of a query.
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    pub first: Row,
    pub rows: usize,
    /// Whether the rows are those of heads.
    pub of_heads: bool,
}

impl Batch {
    /// One of the rows.
    #[inline(always)]
    pub(crate) const fn row(&self, geometry: &Geometry, slot: usize) -> Row {
        if self.of_heads {
            Row { m: self.first.m + slot, index: self.first.index + slot, ..self.first }
        } else {
            self.first.ahead(geometry, slot)
        }
    }
}

/// Placed samples of a batch: all of its rows, or a part of those of a single row.
pub(crate) struct Piece {
    pub located: Located,
    pub placed: [Placed; PIECE],
    /// The first sample of each row in the group of levels, and how many of its samples are here.
    pub start: usize,
    pub samples: usize,
    /// Chunks in use.
    pub chunks: usize,
}

impl Piece {
    pub(crate) const fn new() -> Self {
        Self {
            located: Located::new(),
            placed: [const { Placed::new() }; PIECE],
            start: 0,
            samples: 0,
            chunks: 0,
        }
    }

    /// Places the samples of a batch from `start` on, as many as fit.
    ///
    /// # Safety
    /// The rows are below their count, and at most as many as the group says. Pieces of the same rows come in order, without
    /// others between them; `start` counts samples of the group, and is 0 or begins a piece. The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn place<S: Simd>(
        &mut self,
        (source, scratch): (&SampleSource, &RowScratch),
        geometry: &Geometry,
        group: &LevelGroup,
        batch: &Batch,
        start: usize,
    ) {
        self.start = start;
        self.samples = (group.samples.len() - start).min(PIECE * CHUNK);
        self.chunks = (batch.rows * self.samples).div_ceil(CHUNK);
        let piece = self;
        // SAFETY: passed on.
        unsafe {
            match source {
                SampleSource::Plain(source) => {
                    Placement { piece, source, scratch, geometry, group, batch }.call::<S>();
                }
                SampleSource::Offsets(source) => {
                    S::enter(Placement { piece, source, scratch, geometry, group, batch });
                }
            }
        }
    }

    /// The lanes of one row, chunk by chunk.
    #[inline(always)]
    pub(crate) const fn lanes_of(&self, slot: usize) -> Lanes {
        Lanes { next: slot * self.samples, end: (slot + 1) * self.samples }
    }
}

/// Places the samples of a piece that knows how many they are.
struct Placement<'a, F> {
    piece: &'a mut Piece,
    source: &'a F,
    scratch: &'a RowScratch,
    geometry: &'a Geometry,
    group: &'a LevelGroup,
    batch: &'a Batch,
}

impl<F: Source> Kernel for Placement<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Self { piece, source, scratch, geometry, group, batch } = self;
        let Piece { start, samples, chunks, .. } = *piece;
        // SAFETY: the samples belong to these rows; together they are at most as many as the piece has lanes.
        unsafe {
            for slot in 0..batch.rows {
                let row = batch.row(geometry, slot);
                if start == 0 {
                    source.begin::<S>(geometry, row, slot, scratch);
                }
                let to = (&mut piece.located, slot * samples);
                let samples = (group.samples.start + start, samples);
                source.locate::<S>(geometry, row, samples, scratch, to);
            }
            for chunk in 0..chunks {
                let table = &group.tables[start / CHUNK + chunk];
                let located = (&piece.located, chunk);
                source.place::<S>(located, table, scratch, &mut piece.placed[chunk]);
            }
        }
    }
}

/// Chunks, and the lanes in each.
pub(crate) struct Lanes {
    next: usize,
    end: usize,
}

impl Iterator for Lanes {
    type Item = (usize, Range<usize>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let (chunk, first) = (self.next / CHUNK, self.next % CHUNK);
        let lanes = first..CHUNK.min(first + self.end - self.next);
        self.next += lanes.len();
        Some((chunk, lanes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_rows_follow_each_other_across_chunks() {
        let mut piece = Piece::new();
        piece.samples = 12;
        assert!(piece.lanes_of(0).eq([(0, 0..12)]));
        assert!(piece.lanes_of(1).eq([(0, 12..16), (1, 0..8)]));
        assert!(piece.lanes_of(4).eq([(3, 0..12)]));
        piece.samples = 64;
        assert!(piece.lanes_of(0).eq((0..4).map(|chunk| (chunk, 0..16))));
        piece.samples = 0;
        assert!(piece.lanes_of(3).eq([]));
    }
}
