//! Reference points of the queries and the sampling locations around them.

use msdeform::{Level, Offsets, Problem, ReferenceKind, ReferenceOf};

use super::counter::Stream;
use super::{Draw, math, offset_unit, stream};
use crate::workload::{Locations, ReferencePoints};

/// On a level of 100 x 167 pixels, the finest of many workloads, a corner of four tiles of 4 x 4: every kernel that works
/// tile by tile has all samples in four of them.
const ONE_PLACE: (f64, f64) = (0.406_25, 0.4);

/// Draws the sampling locations of one query and head at a time.
pub(super) struct SampleDrawer<'a> {
    problem: &'a Problem,
    kind: Locations,
    stream: Stream,
    reference: Reference,
    /// Direction of every head: `2 pi m / M`, as (x, y).
    directions: Vec<(f64, f64)>,
    /// Sizes of boxes.
    sizes: Stream,
    /// Queries of the whole workload.
    queries: usize,
}

/// Anchors stand above each other, this far apart: a pillar of BEVFormer, seen by a camera.
const ANCHOR_DISTANCE: f64 = 0.02;

enum Reference {
    /// Centre of every query's own pixel.
    Pixels(Vec<(f64, f64)>),
    Raster {
        columns: usize,
        lines: usize,
    },
    Uniform {
        stream: Stream,
        queries: usize,
    },
}

impl Reference {
    fn of(problem: &Problem, draw: &Draw) -> Self {
        let queries = draw.total_queries.max(problem.queries());
        let raster = |columns: usize| {
            let columns = columns.max(1);
            Self::Raster { columns, lines: queries.div_ceil(columns).max(1) }
        };
        let pixels =
            || problem.levels().iter().map(|level| level.width * level.height).sum::<usize>();
        match draw.reference_points {
            ReferencePoints::Uniform => {
                Self::Uniform { stream: Stream::new(draw.seed, stream::REFERENCE_POINTS), queries }
            }
            ReferencePoints::Pixels if queries == pixels() => {
                Self::Pixels(problem.levels().iter().flat_map(pixel_centres).collect())
            }
            ReferencePoints::RasterWidth(columns) => raster(columns),
            // With another number of queries than the workload's they are not the pixels.
            ReferencePoints::Pixels | ReferencePoints::Raster => {
                let aspect = problem
                    .levels()
                    .first()
                    .map_or(1.0, |level| level.width as f64 / level.height as f64);
                raster((queries as f64 * aspect).sqrt().ceil() as usize)
            }
        }
    }

    fn point(&self, batch: usize, query: usize) -> (f64, f64) {
        match self {
            Self::Pixels(centres) => centres[query],
            Self::Raster { columns, lines } => {
                let (column, line) = (query % columns, query / columns);
                ((column as f64 + 0.5) / *columns as f64, (line as f64 + 0.5) / *lines as f64)
            }
            Self::Uniform { stream, queries } => {
                stream.uniform_pair((batch * queries + query) as u64)
            }
        }
    }
}

fn pixel_centres(level: &Level) -> impl Iterator<Item = (f64, f64)> {
    let (height, width) = (level.height, level.width);
    (0..height * width).map(move |pixel| {
        let (x, y) = (pixel % width, pixel / width);
        ((x as f64 + 0.5) / width as f64, (y as f64 + 0.5) / height as f64)
    })
}

impl<'a> SampleDrawer<'a> {
    pub(super) fn new(problem: &'a Problem, draw: &Draw) -> Self {
        let heads = problem.heads();
        let directions = (0..heads)
            .map(|head| {
                let (sin, cos) = math::sin_cos_turn(head as f64 / heads as f64);
                (cos, sin)
            })
            .collect();
        Self {
            problem,
            kind: draw.locations,
            stream: Stream::new(draw.seed, stream::LOCATIONS),
            reference: Reference::of(problem, draw),
            directions,
            sizes: Stream::new(draw.seed, stream::BOX_SIZES),
            queries: draw.total_queries.max(problem.queries()),
        }
    }

    /// Width and height of a query's box: from a twentieth of the image to nearly half of it.
    fn box_size(&self, (batch, query): (usize, usize)) -> (f64, f64) {
        let (u, v) = self.sizes.uniform_pair((batch * self.queries + query) as u64);
        (0.05 + 0.4 * u, 0.05 + 0.4 * v)
    }

    /// Centre of one of the references of a query.
    fn centre(&self, (batch, query): (usize, usize), reference: usize) -> (f64, f64) {
        let (x, y) = self.reference.point(batch, query);
        match self.problem.offsets().map(Offsets::reference_of) {
            Some(ReferenceOf::Anchor(_)) => (x, y + ANCHOR_DISTANCE * reference as f64),
            _ => (x, y),
        }
    }

    /// The references of a query.
    pub(super) fn draw_references(&self, place: (usize, usize), out: &mut [f64]) {
        let Some(rule) = self.problem.offsets() else { return };
        for (index, reference) in out.chunks_exact_mut(rule.kind().components()).enumerate() {
            let (x, y) = self.centre(place, index);
            reference[..2].copy_from_slice(&[x, y]);
            if rule.kind() == ReferenceKind::Box {
                let (width, height) = self.box_size(place);
                reference[2..].copy_from_slice(&[width, height]);
            }
        }
    }

    /// Turns the locations of a row into the offsets that lead there.
    pub(super) fn make_offsets(&self, place: (usize, usize), row: &mut [f64]) {
        let Some(rule) = self.problem.offsets() else { return };
        let (width, height) = self.box_size(place);
        for (index, level) in self.problem.levels().iter().enumerate() {
            let samples = self.problem.level_samples(index);
            let points = samples.len();
            let unit_x = offset_unit(rule, level.width, width, points);
            let unit_y = offset_unit(rule, level.height, height, points);
            for (point, sample) in samples.enumerate() {
                let (x, y) = self.centre(place, rule.reference(index, point));
                row[2 * sample] = (row[2 * sample] - x) / unit_x;
                row[2 * sample + 1] = (row[2 * sample + 1] - y) / unit_y;
            }
        }
    }

    /// The locations of all samples of a place; `row` is its position in the whole workload.
    pub(super) fn draw_row(
        &self,
        (batch, query, head): (usize, usize, usize),
        row: usize,
        out: &mut [f64],
    ) {
        let reference = self.reference.point(batch, query);
        let direction = self.directions[head];
        let samples = self.problem.samples();
        for (index, level) in self.problem.levels().iter().enumerate() {
            for (point, sample) in self.problem.level_samples(index).enumerate() {
                let position = (row * samples + sample) as u64;
                let (x, y) = match self.kind {
                    Locations::Uniform => self.stream.uniform_pair(position),
                    Locations::Local => self.local(reference, direction, level, point, position),
                    Locations::Outside => self.outside(position),
                    Locations::Hostile => self.hostile(level, position),
                    Locations::OnePlace => ONE_PLACE,
                };
                out[2 * sample] = x;
                out[2 * sample + 1] = y;
            }
        }
    }

    fn local(
        &self,
        reference: (f64, f64),
        direction: (f64, f64),
        level: &Level,
        point: usize,
        position: u64,
    ) -> (f64, f64) {
        let reach = 0.75 * (point as f64 + 1.0);
        let (noise_x, noise_y) = self.stream.normal_pair(position);
        (
            reference.0 + (reach * direction.0 + noise_x) / level.width as f64,
            reference.1 + (reach * direction.1 + noise_y) / level.height as f64,
        )
    }

    /// At least one coordinate a whole level away, for every size of a level.
    fn outside(&self, position: u64) -> (f64, f64) {
        let (u, v) = self.stream.uniform_pair(position);
        match position % 4 {
            0 => (u - 2.0, v),
            1 => (u + 2.0, v),
            2 => (u, v - 2.0),
            _ => (u - 2.0, v + 2.0),
        }
    }

    fn hostile(&self, level: &Level, position: u64) -> (f64, f64) {
        let (u, v) = self.stream.uniform_pair(position);
        let (width, height) = (level.width as f64, level.height as f64);
        // Pixel coordinate -> location.
        let (at_x, at_y) = (|x: f64| (x + 0.5) / width, |y: f64| (y + 0.5) / height);
        match position % 16 {
            0 => (f64::NAN, v),
            1 => (u, f64::NAN),
            2 => (f64::INFINITY, v),
            3 => (u, f64::NEG_INFINITY),
            4 => (1e30, -1e30),
            5 => (at_x(-1.0), v),
            6 => (u, at_y(height)),
            7 => (at_x(width), at_y(height)),
            8 => (at_x(0.0), at_y(0.0)),
            9 => (at_x(width - 1.0), at_y(height - 1.0)),
            10 => (at_x(-0.5), v),
            11 => (u, at_y(height - 0.5)),
            _ => (u * 1.4 - 0.2, v * 1.4 - 0.2),
        }
    }
}
