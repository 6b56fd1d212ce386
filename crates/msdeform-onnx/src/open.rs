//! Levels whose sizes the model leaves open: they are tensors of the graph, and so is what standard operators take of them.

use crate::emit::{Writer, number, same_levels};
use crate::form::Form;
use crate::gather::Samples;
use crate::proto::{Attribute, Tensor, data_type};
use crate::site::{Levels, Site};

impl Writer<'_> {
    /// Sizes and starts of the levels, in 64 bits if `is_wide`, else in 32.
    pub(crate) fn levels(&mut self, site: &Site, is_wide: bool) -> (String, String) {
        match &site.levels {
            Levels::Known(levels) => {
                let sizes: Vec<i64> = levels
                    .iter()
                    .flat_map(|level| [number(level.height), number(level.width)])
                    .collect();
                let firsts: Vec<i64> = levels.iter().map(|level| number(level.start)).collect();
                let count = number(levels.len());
                let shapes = self.constant(Tensor::of_ints(&[count, 2], &sizes, is_wide));
                (shapes, self.constant(Tensor::of_ints(&[count], &firsts, is_wide)))
            }
            Levels::Computed(sizes) => self.computed_levels(sizes, is_wide),
            Levels::Tensors { shapes, starts } => {
                let was_wide = site.form != Form::TensorRt;
                let kind = if is_wide { data_type::INT64 } else { data_type::INT32 };
                let mut converted = |name: &String| {
                    if is_wide == was_wide {
                        return name.clone();
                    }
                    self.cast(name, kind)
                };
                (converted(shapes), converted(starts))
            }
        }
    }

    /// The same, where the model computes the sizes: they are the last two numbers of a tensor for each level.
    fn computed_levels(&mut self, sizes: &[String], is_wide: bool) -> (String, String) {
        let (from, to) = (self.ints(&[-2]), self.ints(&[i64::MAX]));
        let slice =
            |writer: &mut Self, name: &String| writer.push("Slice", &[name, &from, &to], vec![]);
        let pairs: Vec<String> = sizes.iter().map(|name| slice(self, name)).collect();
        let names: Vec<&str> = pairs.iter().map(String::as_str).collect();
        let all = self.push("Concat", &names, vec![Attribute::int("axis", 0)]);
        let shapes = self.reshape(&all, &[-1, 2]);
        let zero = self.constant(Tensor::of_ints(&[], &[0], true));
        let side = |writer: &mut Self, at: i64| {
            let at = writer.constant(Tensor::of_ints(&[], &[at], true));
            writer.push("Gather", &[&shapes, &at], vec![Attribute::int("axis", 1)])
        };
        let (heights, widths) = (side(self, 0), side(self, 1));
        let areas = self.push("Mul", &[&heights, &widths], vec![]);
        let starts = self.push("CumSum", &[&areas, &zero], vec![Attribute::int("exclusive", 1)]);
        if is_wide {
            return (shapes, starts);
        }
        (self.cast(&shapes, data_type::INT32), self.cast(&starts, data_type::INT32))
    }

    /// The image of each level, `[N * M, D, H, W]`, of values `[N, M, D, S]`.
    pub(crate) fn open_images(
        &mut self,
        site: &Site,
        value: &str,
        points: &[usize],
    ) -> Result<Vec<String>, String> {
        same_levels(count(site, points), points)?;
        let (shapes, starts) = self.levels(site, true);
        let shapes = self.reshape(&shapes, &[-1]);
        let (axis, front) = (self.ints(&[3]), self.ints(&[0, -1]));
        let along = || vec![Attribute::int("axis", 0)];
        let image = |level: usize| {
            let level = number(level);
            let mut picked = |from: &str, at: &[i64]| {
                let at = self.ints(at);
                self.push("Gather", &[from, &at], along())
            };
            let size = picked(&shapes, &[2 * level, 2 * level + 1]);
            let (height, width) =
                (picked(&shapes, &[2 * level]), picked(&shapes, &[2 * level + 1]));
            let start = picked(&starts, &[level]);
            let area = self.push("Mul", &[&height, &width], vec![]);
            let end = self.push("Add", &[&start, &area], vec![]);
            let pixels = self.push("Slice", &[value, &start, &end, &axis], vec![]);
            let target = self.push("Concat", &[&front, &size], along());
            self.fold_to(&pixels, &target)
        };
        Ok((0..points.len()).map(image).collect())
    }

    /// What the samples of the gathers need of their levels. `product.rs` recognises these nodes.
    pub(crate) fn open_samples(
        &mut self,
        site: &Site,
        points: &[usize],
        heads: usize,
    ) -> Result<Samples, String> {
        same_levels(count(site, points), points)?;
        let (shapes, starts) = self.levels(site, true);
        let levels: Vec<i64> = (0..points.len())
            .flat_map(|level| std::iter::repeat_n(number(level), points[level]))
            .collect();
        let total = number(levels.len());
        let heads = number(heads);
        let along = || vec![Attribute::int("axis", 0)];
        let flat = self.reshape(&shapes, &[-1]);
        let flat = self.cast(&flat, data_type::INT32);
        let widths = levels.iter().map(|level| 2 * level + 1);
        let widths_and_heights: Vec<i64> =
            widths.chain(levels.iter().map(|level| 2 * level)).collect();
        let all = self.ints32(&[2 * total], &widths_and_heights);
        let sides = self.push("Gather", &[&flat, &all], along());
        let sizes = self.cast(&sides, data_type::FLOAT);
        let one = self.constant(Tensor::of_floats(&[], &[1.0], data_type::FLOAT));
        let last = self.push("Sub", &[&sizes, &one], vec![]);
        let ends = self.push("Concat", &[&last, &last], along());

        let of_x = self.ints32(&[total], &vec![heads; levels.len()]);
        let widths = self.ints32(&[total], &widths_and_heights[..levels.len()]);
        let widths = self.push("Gather", &[&flat, &widths], along());
        let rows = self.push("Mul", &[&widths, &of_x], vec![]);
        let strides = self.push("Concat", &[&of_x, &rows, &of_x, &rows], along());

        let starts = self.cast(&starts, data_type::INT32);
        let of_sample = self.ints32(&[total], &levels);
        let starts = self.push("Gather", &[&starts, &of_sample], along());
        let starts = self.push("Mul", &[&starts, &of_x], vec![]);
        let nothing = self.ints32(&[total], &vec![0; levels.len()]);
        let starts = self.push("Concat", &[&nothing, &starts, &nothing, &starts], along());
        let of_head =
            |head: i64| [vec![0; levels.len()], vec![head; levels.len()]].concat().repeat(2);
        let of_heads: Vec<i64> = (0..heads).flat_map(of_head).collect();
        let of_heads = self.ints32(&[heads, 4 * total], &of_heads);
        let firsts = self.push("Add", &[&starts, &of_heads], vec![]);
        Ok(Samples { total, sizes, ends, strides, firsts })
    }
}

/// The number of levels, as far as the site tells it.
fn count(site: &Site, points: &[usize]) -> usize {
    match &site.levels {
        Levels::Known(levels) => levels.len(),
        Levels::Computed(levels) => levels.len(),
        Levels::Tensors { .. } => points.len(),
    }
}
