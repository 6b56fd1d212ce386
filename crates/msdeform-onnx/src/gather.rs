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

use crate::emit::{Writer, known_levels, known_points, number, same_levels};
use crate::proto::{Attribute, Tensor, data_type};
use crate::site::Site;

/// Operators take axes and sizes of parts as inputs from this opset on.
const FIRST_OPSET: i64 = 13;
/// Locations are cut into multiples of `1 / PARTS`, whose products with a size are exact in f32, and the rest.
const PARTS: f64 = 4096.0;

/// Sizes and strides of every sample's level, for x and then for y.
struct Samples {
    total: i64,
    sizes: Vec<f64>,
    strides: Vec<i64>,
    /// The row of the first pixel, by head and sample.
    firsts: Vec<i64>,
}

impl Samples {
    fn of(site: &Site, heads: usize) -> Result<Self, String> {
        let (levels, points) = (known_levels(site)?, known_points(site)?);
        same_levels(levels, points)?;
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
        let size = |of: fn(&crate::site::Level) -> usize| each().map(move |level| of(level) as f64);
        Ok(Self {
            total: number(each().count()),
            sizes: size(|level| level.width).chain(size(|level| level.height)).collect(),
            strides: each()
                .map(|_| number(heads))
                .chain(each().map(|level| number(level.width * heads)))
                .collect(),
            firsts: (0..heads)
                .flat_map(|head| each().map(move |level| number(level.start * heads + head)))
                .collect(),
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
        let samples = Samples::of(site, heads)?;
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
        let x_then_y = self.constant(Tensor::of_ints(&[2 * total], &x_then_y, false));
        let planes = self.push("Gather", &[&planes, &x_then_y], vec![Attribute::int("axis", 3)]);
        let sizes =
            self.constant(Tensor::of_floats(&[2 * total], &samples.sizes, data_type::FLOAT));
        let (parts, part, half) =
            (scalar(self, PARTS), scalar(self, 1.0 / PARTS), scalar(self, 0.5));
        let coarse = self.push("Mul", &[&planes, &parts], vec![]);
        let coarse = self.push("Floor", &[&coarse], vec![]);
        let coarse = self.push("Mul", &[&coarse, &part], vec![]);
        let fine = self.push("Sub", &[&planes, &coarse], vec![]);
        let coarse = self.push("Mul", &[&coarse, &sizes], vec![]);
        let coarse = self.push("Sub", &[&coarse, &half], vec![]);
        let fine = self.push("Mul", &[&fine, &sizes], vec![]);
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
        let ends: Vec<f64> =
            samples.sizes.iter().map(|size| size - 1.0).collect::<Vec<_>>().repeat(2);
        let ends = self.constant(Tensor::of_floats(&[4 * total], &ends, data_type::FLOAT));
        let is_after = self.push("GreaterOrEqual", &[&pixels, &zero], vec![]);
        let is_before = self.push("LessOrEqual", &[&pixels, &ends], vec![]);
        let is_inside = self.push("And", &[&is_after, &is_before], vec![]);
        let fractions = self.push("Where", &[&is_inside, &fractions, &zero], vec![]);
        let pixels = self.push("Where", &[&is_inside, &pixels, &zero], vec![]);
        let pixels = self.cast(&pixels, data_type::INT32);
        let strides =
            self.constant(Tensor::of_ints(&[4 * total], &samples.strides.repeat(2), false));
        let rows = self.push("Mul", &[&pixels, &strides], vec![]);
        let nothing = vec![0; samples.firsts.len() / usize::try_from(heads.max(1)).unwrap_or(1)];
        let of_head = |firsts: &[i64]| [&nothing, firsts].concat().repeat(2);
        let firsts: Vec<i64> =
            samples.firsts.chunks(nothing.len().max(1)).flat_map(of_head).collect();
        let firsts = self.constant(Tensor::of_ints(&[heads, 4 * total], &firsts, false));
        (self.push("Add", &[&rows, &firsts], vec![]), fractions)
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
