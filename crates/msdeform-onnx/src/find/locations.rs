//! The tensor of the locations, from the coordinates that it leads to.

use super::Lesson;
use crate::array::{Array, Mark};
use crate::dim::{Dim, Sizes};
use crate::evaluate::Reason;
use crate::layout::{Axis, affine, steps_to};
use crate::sampler::{Places, Sampler, sides_of};
use crate::site::{Adaptation, Operand};

/// Locations as they were found.
pub(super) struct Locations<'a> {
    pub(super) points: Vec<usize>,
    /// The samplers, in the order of their levels.
    pub(super) order: Vec<Sampler<'a>>,
    /// The shape of each level's coordinates, where they are in pixels.
    pub(super) places: Vec<Option<Vec<usize>>>,
    /// Height and width of each level, where the coordinates tell them.
    pub(super) sides: Vec<Option<[usize; 2]>>,
    pub(super) heads: usize,
    pub(super) dims: [Option<Dim>; 2],
}

/// Coordinates of one sampler: rows of all heads, queries, points, x and y, between -1 and 1.
struct Coordinates {
    heads: usize,
    points: usize,
    data: Vec<f64>,
}

impl<'a> Lesson<'_, 'a> {
    /// Where the samples are taken, and from which tensor: places are run on three sets of numbers.
    pub(super) fn locations(
        &self,
        sizes: &mut Sizes,
        name: &str,
    ) -> Result<(Operand, Locations<'a>), Reason> {
        let shape = self.shape(sizes, name, None)?;
        let samplers = &self.skeleton.samplers;
        let names: Vec<&str> = samplers.iter().flat_map(|sampler| sampler.places.names()).collect();
        let mut run = |of: &dyn Fn(usize) -> f64| {
            let array = Array::filled(&shape, of).ok_or("too large")?;
            self.context.run(sizes, vec![(name, array)], &names)
        };
        let mut runs = [run(&|_| 0.0)?, run(&|_| 1.0)?, run(&|at| at as f64)?].map(Vec::into_iter);
        let mut grids: Vec<[Coordinates; 3]> = Vec::new();
        let mut all_sides = Vec::new();
        for sampler in samplers {
            let mut next = || runs.each_mut().map(|run| run.next().unwrap_or_default());
            let (grid, sides) = match sampler.places {
                Places::Grid(_) => (next().map(|grid| self.of_grid(grid)), None),
                Places::Pixels(_) => {
                    let (one, other) = (next(), next());
                    let shape = one[0].shape.clone();
                    let image = self.context.facts.shape(sampler.image);
                    let image = image.and_then(|dims| sizes.shape(dims)).unwrap_or_default();
                    let sides = sides_of(&one, &other, &image)?;
                    let [x, y] = if sides.is_swapped { [other, one] } else { [one, other] };
                    let [x0, x1, x2] = x;
                    let [y0, y1, y2] = y;
                    let pairs = [[x0, y0], [x1, y1], [x2, y2]];
                    (
                        pairs.map(|pair| self.of_pixels(pair, sides.sides)),
                        Some((sides.sides, shape)),
                    )
                }
            };
            let [shifts, sums, places] = grid;
            grids.push([shifts?, sums?, places?]);
            all_sides.push(sides);
        }
        let shift =
            *grids.iter().find_map(|[shifts, ..]| shifts.data.first()).ok_or("there are none")?;
        let factor =
            *grids.iter().find_map(|[_, sums, _]| sums.data.first()).ok_or("there are none")?
                - shift;
        let is_even = |which: usize, number: f64| {
            grids.iter().flat_map(|grid| &grid[which].data).all(|&x| (x - number).abs() < 1e-6)
        };
        if factor == 0.0 || !is_even(0, shift) || !is_even(1, factor + shift) {
            return Err("they are not scaled evenly".into());
        }
        let mut levels = Vec::new();
        let mut heads = 0;
        for (([.., places], sampler), sides) in grids.iter().zip(samplers).zip(all_sides) {
            heads = places.heads;
            let points = places.points;
            let marks: Vec<Mark> =
                places.data.iter().map(|x| ((x - shift) / factor).round() as Mark).collect();
            let map = affine(&marks, &[self.batch, heads, self.queries, points, 2]);
            levels.push((map.ok_or("their order has gaps")?, points, (sampler, sides)));
        }
        levels.sort_by_key(|(map, ..)| map.offset);
        // The step between samples, and that between levels where each has one.
        let steps =
            levels.iter().filter(|(_, points, _)| *points > 1).map(|(map, ..)| map.steps[3]);
        let between = levels.windows(2).map(|pair| pair[1].0.offset - pair[0].0.offset);
        let step = steps.chain(between).next().unwrap_or(2);
        let mut next = 0;
        let first = &levels.first().ok_or("there are none")?.0.steps;
        for (map, points, _) in &levels {
            let agrees = map.offset == next
                && map.steps[..3] == first[..3]
                && map.steps[4] == 1
                && (*points < 2 || map.steps[3] == step);
            if !agrees {
                return Err("the levels do not follow each other in one axis".into());
            }
            next += step * i64::try_from(*points).map_err(|_| "too many points")?;
        }
        let points: Vec<usize> = levels.iter().map(|(_, points, _)| *points).collect();
        let axes = [
            Axis { size: self.batch, step: first[0] },
            Axis { size: self.queries, step: first[2] },
            Axis { size: heads, step: first[1] },
            Axis { size: points.iter().sum(), step },
            Axis { size: 2, step: 1 },
        ];
        let mut steps =
            steps_to(&axes, &shape, None).ok_or("their axes are not those of the operator")?;
        let transposed = !steps.is_empty();
        let (factor, shift) = (factor / 2.0, f64::midpoint(shift, 1.0));
        if factor != 1.0 || shift != 0.0 {
            steps.push(Adaptation::Scale { factor, shift });
        }
        let dims = self.context.facts.shape(name);
        let dim = |at: usize| dims.filter(|_| !transposed).and_then(|dims| dims.get(at)).cloned();
        let operand = Operand { tensor: name.to_owned(), rank: shape.len(), steps };
        let dims = [dim(0), dim(1)];
        let mut found =
            Locations { points, order: vec![], sides: vec![], places: vec![], heads, dims };
        for (.., (sampler, in_pixels)) in levels {
            let (sides, places) = in_pixels.unzip();
            found.order.push(sampler.clone());
            found.sides.push(sides);
            found.places.push(places);
        }
        Ok((operand, found))
    }

    fn of_grid(&self, grid: Array<f64>) -> Result<Coordinates, Reason> {
        let &[folded, queries, points, 2] = &grid.shape[..] else {
            return Err("a grid does not have four axes".into());
        };
        if folded % self.batch.max(1) != 0 || queries != self.queries {
            return Err(format!("a grid has the shape {:?}", grid.shape));
        }
        Ok(Coordinates { heads: folded / self.batch.max(1), points, data: grid.data })
    }

    /// x and y of pixels, whose axes are images, heads, queries and points in this order, however they are folded.
    fn of_pixels(
        &self,
        [x, y]: [Array<f64>; 2],
        [height, width]: [usize; 2],
    ) -> Result<Coordinates, Reason> {
        let (batch, total) = (self.batch.max(1), x.data.len());
        let heads = match x.shape[..] {
            [first, heads, ..]
                if first == batch && heads * batch != self.queries && x.shape.len() > 3 =>
            {
                heads
            }
            [first, ..] if first % batch == 0 => first / batch,
            _ => return Err(format!("coordinates have the shape {:?}", x.shape)),
        };
        let rows = batch * heads * self.queries;
        if rows == 0 || !total.is_multiple_of(rows) || y.data.len() != total {
            return Err(format!("coordinates have the shape {:?}", x.shape));
        }
        let grid = |x: f64, size: usize| 2.0 * (x + 0.5) / size as f64 - 1.0;
        let pairs =
            x.data.iter().zip(&y.data).flat_map(|(&x, &y)| [grid(x, width), grid(y, height)]);
        Ok(Coordinates { heads, points: total / rows, data: pairs.collect() })
    }
}
