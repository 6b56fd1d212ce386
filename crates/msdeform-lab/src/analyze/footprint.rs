//! What the actual locations touch, and how much of it again and again.

use std::collections::BTreeMap;

use msdeform::{Problem, reference};
use serde::{Deserialize, Serialize};

use crate::HostTensors;
use crate::workload::{ReferencePoints, Workload};

/// Bytes that a cache fetches and counts at a time.
const SECTOR_BYTES: usize = 32;
/// Bytes of a line of the cache, four sectors with one tag.
const LINE_BYTES: usize = 128;

/// Reuse within groups of queries that run together, of one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    pub grouping: String,
    /// Queries of a group, at most.
    pub queries: usize,
    /// Sectors read by the corners of all samples.
    pub accesses: u64,
    /// Sectors that are different within their group and head, summed over groups and heads.
    pub distinct: u64,
    /// Share of the accesses that a cache serves which holds one group of one head and starts empty.
    pub hit_rate: f64,
    /// Bytes that such a cache holds at the end of a group, on average.
    pub group_bytes: f64,
    /// Lines of 128 bytes that a group of one head touches, on average.
    pub group_lines: f64,
}

/// Queries that an SM has at work at once: 64 warps of eight, a pair of heads each.
const QUERIES_OF_AN_SM: usize = 512;

/// The groupings that make sense for a workload: as the queries come, in tiles where they form an image,
/// and ordered by where they look; a block's worth of them, and an SM's.
pub fn footprints(workload: &Workload, problem: &Problem, inputs: &HostTensors) -> Vec<Footprint> {
    let touched = Touched::new(problem, inputs);
    let in_order: Vec<usize> = (0..problem.queries()).collect();
    let in_a_row = |count: usize| {
        touched.footprint(&format!("{count} in a row"), count, &cut(&in_order, count))
    };
    let mut found = vec![in_a_row(32), in_a_row(QUERIES_OF_AN_SM)];
    let rasters = rasters(workload, problem);
    if !rasters.is_empty() {
        for (width, height) in [(8, 4), (16, 8), (32, 16)] {
            let tiles: Vec<Vec<usize>> =
                rasters.iter().flat_map(|raster| raster.tiles(width, height)).collect();
            let name = format!("tiles of {width} x {height}");
            found.push(touched.footprint(&name, width * height, &tiles));
        }
    }
    let sorted = touched.by_place();
    found.push(touched.footprint("32 along a Morton curve", 32, &cut(&sorted, 32)));
    found
}

fn cut(queries: &[usize], size: usize) -> Vec<Vec<usize>> {
    queries.chunks(size).map(<[usize]>::to_vec).collect()
}

/// Queries that form an image, row by row.
struct Raster {
    first: usize,
    width: usize,
    queries: usize,
}

impl Raster {
    fn tiles(&self, width: usize, height: usize) -> Vec<Vec<usize>> {
        let mut tiles: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for query in 0..self.queries {
            let (x, y) = (query % self.width, query / self.width);
            tiles.entry((y / height, x / width)).or_default().push(self.first + query);
        }
        tiles.into_values().collect()
    }
}

fn rasters(workload: &Workload, problem: &Problem) -> Vec<Raster> {
    let queries = problem.queries();
    let one =
        |width: usize| vec![Raster { first: 0, width: width.clamp(1, queries.max(1)), queries }];
    match workload.reference_points {
        ReferencePoints::Uniform => Vec::new(),
        ReferencePoints::RasterWidth(width) => one(width),
        ReferencePoints::Raster => problem.levels().first().map_or_else(Vec::new, |level| {
            let aspect = level.width as f64 / level.height.max(1) as f64;
            one((queries as f64 * aspect).sqrt().round() as usize)
        }),
        ReferencePoints::Pixels => {
            let mut first = 0;
            let rasters = problem.levels().iter().map(|level| {
                let raster =
                    Raster { first, width: level.width, queries: level.width * level.height };
                first += raster.queries;
                raster
            });
            rasters.filter(|raster| raster.width > 0).collect()
        }
    }
}

/// The corners of every sample of the first image, as offsets of pixel rows.
struct Touched<'a> {
    problem: &'a Problem,
    /// In pixels, `(x, y)` of every sample of the first image.
    places: Vec<(f64, f64)>,
    row_bytes: usize,
}

impl<'a> Touched<'a> {
    fn new(problem: &'a Problem, inputs: &HostTensors) -> Self {
        let inputs = inputs.widened();
        let locations = reference::samples_of(problem, |role| inputs.get(role)).locations;
        let per_image = problem.queries() * problem.heads() * problem.samples();
        let mut level_of_sample = Vec::with_capacity(problem.samples());
        for (index, level) in problem.levels().iter().enumerate() {
            level_of_sample.extend(problem.level_samples(index).map(|_| *level));
        }
        let places = (0..per_image.min(locations.len() / 2)).map(|sample| {
            let level = level_of_sample[sample % problem.samples()];
            let place = |axis: usize, size: usize| locations[2 * sample + axis] * size as f64 - 0.5;
            (place(0, level.width), place(1, level.height))
        });
        let row_bytes = problem.channels() * problem.dtype().size_bytes();
        Self { problem, places: places.collect(), row_bytes }
    }

    fn samples_of(&self, query: usize, head: usize) -> &[(f64, f64)] {
        let count = self.problem.samples();
        let first = (query * self.problem.heads() + head) * count;
        self.places.get(first..first + count).unwrap_or(&[])
    }

    /// Queries ordered along a Morton curve of their mean place on the first level.
    fn by_place(&self) -> Vec<usize> {
        let problem = self.problem;
        let points = if problem.levels().is_empty() { 0..0 } else { problem.level_samples(0) };
        let mut keyed: Vec<(u64, usize)> = (0..problem.queries())
            .map(|query| {
                let seen = (0..problem.heads()).flat_map(|head| {
                    self.samples_of(query, head).get(points.clone()).unwrap_or(&[])
                });
                let seen = seen.filter(|(x, y)| x.is_finite() && y.is_finite());
                let (mut sum, mut count) = ((0.0, 0.0), 0.0f64);
                for (x, y) in seen {
                    (sum, count) = ((sum.0 + x, sum.1 + y), count + 1.0);
                }
                // Half pixels; `as` saturates what lies outside.
                let cell = |sum: f64| (2.0 * sum / count.max(1.0)).max(0.0) as u32;
                (interleave(cell(sum.0), cell(sum.1)), query)
            })
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, query)| query).collect()
    }

    fn footprint(&self, grouping: &str, queries: usize, groups: &[Vec<usize>]) -> Footprint {
        let problem = self.problem;
        let image_bytes =
            problem.value_len() / problem.batch().max(1) * problem.dtype().size_bytes();
        // The group that touched a sector last: no list needs clearing between groups.
        let mut last_group = vec![u32::MAX; image_bytes.div_ceil(SECTOR_BYTES) + 1];
        let mut last_group_of_line = vec![u32::MAX; image_bytes.div_ceil(LINE_BYTES) + 1];
        let (mut accesses, mut distinct, mut lines, mut stamp) = (0u64, 0u64, 0u64, 0u32);
        for head in 0..problem.heads() {
            for group in groups {
                for &query in group {
                    self.each_sector(query, head, |sector| {
                        accesses += 1;
                        if last_group[sector] != stamp {
                            last_group[sector] = stamp;
                            distinct += 1;
                        }
                        let line = sector * SECTOR_BYTES / LINE_BYTES;
                        if last_group_of_line[line] != stamp {
                            last_group_of_line[line] = stamp;
                            lines += 1;
                        }
                    });
                }
                stamp += 1;
            }
        }
        let groups = (problem.heads() * groups.len()).max(1) as f64;
        Footprint {
            grouping: grouping.to_owned(),
            queries,
            accesses,
            distinct,
            hit_rate: if accesses == 0 { 0.0 } else { 1.0 - distinct as f64 / accesses as f64 },
            group_bytes: distinct as f64 * SECTOR_BYTES as f64 / groups,
            group_lines: lines as f64 / groups,
        }
    }

    fn each_sector(&self, query: usize, head: usize, mut visit: impl FnMut(usize)) {
        let problem = self.problem;
        let bytes = problem.dtype().size_bytes();
        let head_base = problem.head_offset(0, head) * bytes;
        let pixel_bytes = problem.pixel_stride() * bytes;
        let samples = self.samples_of(query, head);
        for (index, level) in problem.levels().iter().enumerate() {
            let origin = level.origin(problem.layout());
            let pitch = level.row_pitch(problem.layout());
            for &(x, y) in samples.get(problem.level_samples(index)).unwrap_or(&[]) {
                let counts =
                    x > -1.0 && x < level.width as f64 && y > -1.0 && y < level.height as f64;
                if !counts {
                    continue;
                }
                let (left, top) = (x.floor() as i64, y.floor() as i64);
                for (column, row) in
                    [(left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)]
                {
                    let is_in = |place, size: usize| (0..size as i64).contains(&place);
                    if !(is_in(column, level.width) && is_in(row, level.height)) {
                        continue;
                    }
                    let pixel = origin + row as usize * pitch + column as usize;
                    let first = head_base + pixel * pixel_bytes;
                    let last = first + self.row_bytes.max(1) - 1;
                    (first / SECTOR_BYTES..=last / SECTOR_BYTES).for_each(&mut visit);
                }
            }
        }
    }
}

/// Bits of `x` and `y` in turn.
fn interleave(x: u32, y: u32) -> u64 {
    let spread =
        |word: u32| (0..32).fold(0u64, |out, bit| out | (u64::from(word >> bit & 1) << (2 * bit)));
    spread(x) | spread(y) << 1
}

#[cfg(test)]
mod tests {
    use crate::workload::{self, Sizes};
    use crate::{Buffer, Draw, Locations};
    use msdeform::{DType, Role, ValueLayout};

    use super::*;

    fn footprints_of(name: &str, locations: Locations, queries: Option<usize>) -> Vec<Footprint> {
        let workload = workload::find(name).unwrap();
        let sizes = Sizes { batch: Some(1), queries };
        let problem = workload.problem(DType::F16, workload.layouts[0], sizes).unwrap();
        let inputs =
            HostTensors::generate(&problem, &Draw::standard(workload, &problem, locations));
        footprints(workload, &problem, &inputs)
    }

    #[test]
    fn neighbours_share_and_strangers_do_not() {
        let local = footprints_of("ddetr_enc", Locations::Local, None);
        let uniform = footprints_of("ddetr_enc", Locations::Uniform, None);
        let rate = |list: &[Footprint], name: &str| {
            list.iter().find(|f| f.grouping == name).unwrap().hit_rate
        };
        assert!(rate(&local, "tiles of 16 x 8") > rate(&local, "tiles of 8 x 4"));
        assert!(rate(&local, "tiles of 8 x 4") > rate(&local, "32 in a row"));
        assert!(rate(&uniform, "tiles of 8 x 4") < 0.5 * rate(&local, "tiles of 8 x 4"));
    }

    #[test]
    fn one_query_on_one_pixel_touches_its_own_bytes() {
        let problem = Problem::builder()
            .channels(32)
            .queries(1)
            .levels([(4, 4)])
            .points(1)
            .dtype(DType::F16)
            .layout(ValueLayout::Interleaved)
            .build()
            .unwrap();
        // x = 1.5 and y = -0.5 pixels: two corners of the upper row do not count.
        let locations = (Role::Locations, Buffer::from(vec![0.5f32, 0.0]));
        let inputs = HostTensors::from_iter([locations]);
        let touched = Touched::new(&problem, &inputs);
        let footprint = touched.footprint("one", 1, &[vec![0]]);
        // Two pixels of 64 bytes.
        assert_eq!((footprint.accesses, footprint.distinct), (4, 4));
        assert!(footprint.hit_rate.abs() < 1e-12);
        assert!((footprint.group_bytes - 128.0).abs() < 1e-12);
        assert!(
            (footprint.group_lines - 2.0).abs() < 1e-12,
            "pixels 1 and 2 lie in two lines: {footprint:?}"
        );
    }

    #[test]
    fn tiles_hold_every_query_once() {
        let raster = Raster { first: 5, width: 10, queries: 33 };
        let mut all: Vec<usize> = raster.tiles(4, 2).into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (5..38).collect::<Vec<_>>());
    }

    #[test]
    fn a_curve_interleaves_bits() {
        assert_eq!(interleave(0b11, 0b01), 0b0111);
        assert_eq!(interleave(u32::MAX, 0), 0x5555_5555_5555_5555);
    }
}
