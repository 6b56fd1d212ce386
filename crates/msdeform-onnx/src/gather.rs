//! Writes a site as gathers: standard operators without `GridSample`, for runtimes that compute `GridSample` wrongly or not at all.
//!
//! The four pixels of all samples of all levels are the rows of one `Gather`, and one `MatMul` weighs and adds them up. ONNX
//! Runtime runs this in half the time of one `Gather` for each corner and level, because most time goes into tensors of
//! `[N, Lq, M, samples, D]`, and this spelling writes them once and reads them once. The tensors of coordinates are small:
//!
//! - Coordinates are f32 and indices int32 in models of any dtype. The product of a location and a size is computed in two parts,
//!   because its rounding alone would be an error of 2e-6 at a level of 80 pixels.
//! - A comparison that is false for NaN masks weights and indices before the conversion to int32, whose result for NaN, infinite
//!   and huge numbers differs between runtimes.
//! - No tensor has more than four axes, and no shape depends on data.

use crate::emit::{Writer, known_points, number, same_levels};
use crate::proto::{Attribute, Tensor, data_type};
use crate::site::{Levels, Site};

/// Operators take axes and sizes of parts as inputs from this opset on.
const FIRST_OPSET: i64 = 13;
/// Locations are cut into multiples of `1 / PARTS`, whose products with a size are exact in f32, and the rest.
const PARTS: f64 = 4096.0;

/// Tensors with what every sample needs of its level, for x and then for y.
pub(crate) struct Samples {
    pub(crate) total: i64,
    /// Widths and heights in f32, `[2 * samples]`.
    pub(crate) sizes: String,
    /// Numbers of the last columns and rows of the left, upper, right and lower pixels in f32, `[4 * samples]`.
    pub(crate) ends: String,
    /// Rows of the table from a pixel to the next one in int32, `[4 * samples]`.
    pub(crate) strides: String,
    /// The rows of the first pixels in int32, by head, `[heads, 4 * samples]`.
    pub(crate) firsts: String,
}

impl Samples {
    fn of(writer: &mut Writer<'_>, site: &Site, heads: usize) -> Result<Self, String> {
        let points = known_points(site)?;
        let Levels::Known(levels) = &site.levels else {
            return writer.open_samples(site, points, heads);
        };
        same_levels(levels.len(), points)?;
        let each = || {
            levels.iter().zip(points).flat_map(|(level, &count)| std::iter::repeat_n(level, count))
        };
        let pixels = levels
            .iter()
            .map(|level| level.start.checked_add(level.height.checked_mul(level.width)?));
        let pixels = pixels.collect::<Option<Vec<usize>>>().and_then(|ends| ends.into_iter().max());
        let images = site.batch.as_ref().and_then(crate::dim::Dim::size).unwrap_or(1);
        let rows = pixels.and_then(|pixels| pixels.checked_mul(heads)?.checked_mul(images));
        if rows.is_none_or(|rows| i32::try_from(rows).is_err()) {
            return Err("its values have more than 2^31 rows, which int32 does not count".into());
        }
        let total = number(each().count());
        let sizes: Vec<f64> = each()
            .map(|level| level.width as f64)
            .chain(each().map(|level| level.height as f64))
            .collect();
        let ends = sizes.iter().map(|size| size - 1.0).collect::<Vec<_>>().repeat(2);
        let strides: Vec<i64> = each()
            .map(|_| number(heads))
            .chain(each().map(|level| number(level.width * heads)))
            .collect();
        let nothing = || each().map(|_| 0);
        let of_head = |head: usize| {
            let firsts = each().map(move |level| number(level.start * heads + head));
            nothing().chain(firsts).collect::<Vec<i64>>().repeat(2)
        };
        let firsts: Vec<i64> = (0..heads).flat_map(of_head).collect();
        let floats =
            |values: &[f64]| Tensor::of_floats(&[number(values.len())], values, data_type::FLOAT);
        Ok(Self {
            total,
            sizes: writer.constant(floats(&sizes)),
            ends: writer.constant(floats(&ends)),
            strides: writer.ints32(&[4 * total], &strides.repeat(2)),
            firsts: writer.ints32(&[number(heads), 4 * total], &firsts),
        })
    }
}

impl Writer<'_> {
    /// The nodes from value `[N, S, M, D]`, locations in f32, and weights to the site's output.
    pub(crate) fn gather(
        &mut self,
        site: &Site,
        opset: i64,
        [value, locations, weights]: [&str; 3],
        given_weights: &str,
    ) -> Result<(), String> {
        if opset < FIRST_OPSET {
            return Err(format!(
                "the model has opset {opset}, and the gather form needs {FIRST_OPSET} or newer; \
                 convert it first (onnx.version_converter)"
            ));
        }
        let heads = site.heads.ok_or("the number of its heads is not known")?;
        let samples = Samples::of(self, site, heads)?;
        let (heads, total) = (number(heads), samples.total);
        let (corners, fractions) = self.corners(locations, &samples, heads);
        let [left, right, mut top, mut bottom] = self.quarters(&corners, total);
        if let Some(images) = self.first_rows(site, value, heads) {
            top = self.push("Add", &[&top, &images], vec![]);
            bottom = self.push("Add", &[&bottom, &images], vec![]);
        }
        let rows = self.pairs("Add", [&left, &right], [&top, &bottom]);
        let rows = self.reshape(&rows, &[-1, 4 * total]);
        let weights = self.in_type(weights, given_weights, data_type::FLOAT);
        let weights = self.reshape(&weights, &[0, 0, heads, total]);
        let [left, right, top, bottom] = self.quarters(&fractions, total);
        let top = self.push("Mul", &[&top, &weights], vec![]);
        let bottom = self.push("Mul", &[&bottom, &weights], vec![]);
        let mut weights = self.pairs("Mul", [&left, &right], [&top, &bottom]);
        if let Some(kind) =
            self.facts.data_type(&site.value.tensor).filter(|&kind| kind != data_type::FLOAT)
        {
            weights = self.cast(&weights, kind);
        }
        let weights = self.reshape(&weights, &[-1, 1, 4 * total]);
        let table = self.push("Flatten", &[value], vec![Attribute::int("axis", 3)]);
        let pixels = self.push("Gather", &[&table, &rows], vec![Attribute::int("axis", 0)]);
        let sums = self.push("MatMul", &[&weights, &pixels], vec![]);
        self.unfold(site, locations, &sums)
    }

    /// Rows of the left, right, upper and lower pixels of each sample without the batch, `[N, Lq, M, 4 * samples]` in int32, and
    /// their weights in f32. Pixels outside of their level have row and weight zero.
    fn corners(&mut self, locations: &str, samples: &Samples, heads: i64) -> (String, String) {
        let total = samples.total;
        let scalar = |writer: &mut Self, x: f64| {
            writer.constant(Tensor::of_floats(&[], &[x], data_type::FLOAT))
        };
        let planes = self.reshape(locations, &[0, 0, heads, 2 * total]);
        let x_then_y: Vec<i64> =
            (0..2).flat_map(|axis| (0..total).map(move |at| 2 * at + axis)).collect();
        let x_then_y = self.ints32(&[2 * total], &x_then_y);
        let planes = self.push("Gather", &[&planes, &x_then_y], vec![Attribute::int("axis", 3)]);
        let (parts, part, half) =
            (scalar(self, PARTS), scalar(self, 1.0 / PARTS), scalar(self, 0.5));
        let coarse = self.push("Mul", &[&planes, &parts], vec![]);
        let coarse = self.push("Floor", &[&coarse], vec![]);
        let coarse = self.push("Mul", &[&coarse, &part], vec![]);
        let fine = self.push("Sub", &[&planes, &coarse], vec![]);
        let coarse = self.push("Mul", &[&coarse, &samples.sizes], vec![]);
        let coarse = self.push("Sub", &[&coarse, &half], vec![]);
        let fine = self.push("Mul", &[&fine, &samples.sizes], vec![]);
        let both = self.push("Add", &[&coarse, &fine], vec![]);
        let first = self.push("Floor", &[&both], vec![]);
        let rest = self.push("Sub", &[&coarse, &first], vec![]);
        let rest = self.push("Add", &[&rest, &fine], vec![]);

        let (zero, one) = (scalar(self, 0.0), scalar(self, 1.0));
        let last = vec![Attribute::int("axis", 3)];
        let second = self.push("Add", &[&first, &one], vec![]);
        let pixels = self.push("Concat", &[&first, &second], last.clone());
        let other = self.push("Sub", &[&one, &rest], vec![]);
        let fractions = self.push("Concat", &[&other, &rest], last);
        let is_after = self.push("GreaterOrEqual", &[&pixels, &zero], vec![]);
        let is_before = self.push("LessOrEqual", &[&pixels, &samples.ends], vec![]);
        let is_inside = self.push("And", &[&is_after, &is_before], vec![]);
        let fractions = self.push("Where", &[&is_inside, &fractions, &zero], vec![]);
        let pixels = self.push("Where", &[&is_inside, &pixels, &zero], vec![]);
        let pixels = self.cast(&pixels, data_type::INT32);
        let rows = self.push("Mul", &[&pixels, &samples.strides], vec![]);
        (self.push("Add", &[&rows, &samples.firsts], vec![]), fractions)
    }

    /// Four parts of the last axis: x of the left pixels, y of the upper ones, x of the right, y of the lower; returned as left,
    /// right, upper, lower.
    fn quarters(&mut self, tensor: &str, total: i64) -> [String; 4] {
        let sizes = self.ints(&[total; 4]);
        let base = self.fresh();
        let part = |at: usize| format!("{base}.{at}");
        let outputs = (0..4).map(part).collect();
        self.push_to("Split", &[tensor, &sizes], vec![Attribute::int("axis", 3)], outputs);
        [part(0), part(2), part(1), part(3)]
    }

    /// Each column with each line: the four corners.
    fn pairs(&mut self, op: &str, columns: [&str; 2], lines: [&str; 2]) -> String {
        let corners: Vec<String> = lines
            .iter()
            .flat_map(|line| columns.map(|column| (column, line)))
            .map(|(column, line)| self.push(op, &[column, line], vec![]))
            .collect();
        self.joined(&corners, 3)
    }

    /// The first row of each image, `[N, 1, 1, 1]`; none for a single image.
    fn first_rows(&mut self, site: &Site, value: &str, heads: i64) -> Option<String> {
        if site.batch.as_ref().and_then(crate::dim::Dim::size) == Some(1) {
            return None;
        }
        let shape = self.push("Shape", &[value], vec![]);
        let scalar = |writer: &mut Self, x: i64| writer.constant(Tensor::of_ints(&[], &[x], true));
        let (zero, one, heads) = (scalar(self, 0), scalar(self, 1), scalar(self, heads));
        let axis = || vec![Attribute::int("axis", 0)];
        let images = self.push("Gather", &[&shape, &zero], axis());
        let pixels = self.push("Gather", &[&shape, &one], axis());
        let images = self.push("Range", &[&zero, &images, &one], vec![]);
        let rows = self.push("Mul", &[&pixels, &heads], vec![]);
        let firsts = self.push("Mul", &[&images, &rows], vec![]);
        let firsts = self.cast(&firsts, data_type::INT32);
        Some(self.reshape(&firsts, &[-1, 1, 1, 1]))
    }

    /// From `[N * Lq * M, 1, D]` to the site's output.
    fn unfold(&mut self, site: &Site, locations: &str, sums: &str) -> Result<(), String> {
        let heads = number(site.heads.ok_or("the number of its heads is not known")?);
        let channels = site.channels.map(number);
        let rest = match (site.is_output_split, channels) {
            (true, Some(channels)) => vec![heads, channels],
            (false, Some(channels)) => vec![heads * channels],
            (_, None) => return Err("the number of its channels is not known".into()),
        };
        let target = match site.batch.as_ref().and_then(crate::dim::Dim::size) {
            Some(images) => self.ints(&[&[number(images), -1], &rest[..]].concat()),
            None => {
                let shape = self.push("Shape", &[locations], vec![]);
                let (zero, two) = (self.ints(&[0]), self.ints(&[2]));
                let front = self.push("Slice", &[&shape, &zero, &two], vec![]);
                let rest = self.ints(&rest);
                self.push("Concat", &[&front, &rest], vec![Attribute::int("axis", 0)])
            }
        };
        self.push_to("Reshape", &[sums, &target], vec![], vec![site.output.clone()]);
        Ok(())
    }
}
