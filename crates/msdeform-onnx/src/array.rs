//! Small dense arrays, and the operators that move their elements about.

use crate::attributes::{AxisSlice, axis};
use crate::dim::{Dim, product};
use crate::operators::Call;

/// What an array holds: numbers, marks that say where an element came from, or sizes.
pub(crate) trait Element: Clone + PartialEq + Sized {
    /// A constant of the model as an element, where that makes sense.
    fn constant(_: f64) -> Option<Self> {
        None
    }

    /// The result of `Add`, `Sub`, `Mul` or `Div`.
    fn arithmetic(_op: &str, _a: &Self, _b: &Self) -> Option<Self> {
        None
    }

    /// What `ReduceSum` or `ReduceProd` makes of these.
    fn reduced(_op: &str, _row: &[Self]) -> Option<Self> {
        None
    }

    fn sampled(_image: &Array<Self>, _grid: &Array<Self>) -> Option<Array<Self>> {
        None
    }

    /// The result of an operator that is for numbers alone.
    fn computed(_call: &Call<'_>, _inputs: &[Array<Self>], _most: usize) -> Option<Array<Self>> {
        None
    }
}

impl Element for f64 {
    fn constant(number: f64) -> Option<Self> {
        Some(number)
    }

    fn arithmetic(op: &str, a: &Self, b: &Self) -> Option<Self> {
        match op {
            "Add" => Some(a + b),
            "Sub" => Some(a - b),
            "Mul" => Some(a * b),
            "Div" => Some(a / b),
            _ => None,
        }
    }

    fn reduced(op: &str, row: &[Self]) -> Option<Self> {
        Some(if op == "ReduceSum" { row.iter().sum() } else { row.iter().product() })
    }

    fn computed(call: &Call<'_>, inputs: &[Array<Self>], most: usize) -> Option<Array<Self>> {
        crate::compute::computed(call, inputs, most)
    }

    fn sampled(image: &Array<Self>, grid: &Array<Self>) -> Option<Array<Self>> {
        image.grid_sampled(grid)
    }
}

impl Element for Dim {
    fn arithmetic(op: &str, a: &Self, b: &Self) -> Option<Self> {
        match (op, a.known(), b.known()) {
            ("Mul", ..) => a.times(b),
            ("Div", ..) => a.over(b).or_else(|| Some(a.known()?.checked_div(b.known()?)?.into())),
            ("Add", Some(a), Some(b)) => Some(a.checked_add(b)?.into()),
            ("Sub", Some(a), Some(b)) => Some(a.checked_sub(b)?.into()),
            ("Add" | "Sub", ..) => Some(Self::unknown()),
            _ => None,
        }
    }

    fn reduced(op: &str, row: &[Self]) -> Option<Self> {
        if op == "ReduceProd" { product(row) } else { None }
    }
}

/// The position of an element in the tensor that it came from.
pub(crate) type Mark = u32;

/// No position.
pub(crate) const NOWHERE: Mark = Mark::MAX;

impl Element for Mark {}

/// A sample and the weight that it is multiplied with.
impl Element for (Mark, Mark) {
    fn arithmetic(op: &str, a: &Self, b: &Self) -> Option<Self> {
        match (op, *a, *b) {
            ("Mul", (sample, NOWHERE), (NOWHERE, weight))
            | ("Mul", (NOWHERE, weight), (sample, NOWHERE)) => Some((sample, weight)),
            _ => None,
        }
    }
}

/// A dense array, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array<T> {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<T>,
}

impl<T> Default for Array<T> {
    fn default() -> Self {
        Self { shape: vec![], data: vec![] }
    }
}

/// Elements of a shape, if they can be counted.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
}

/// Steps in memory from one index of each axis to the next.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at];
    }
    strides
}

impl<T: Element> Array<T> {
    pub(crate) fn filled(shape: &[usize], mut of: impl FnMut(usize) -> T) -> Option<Self> {
        let count = elements(shape)?;
        Some(Self { shape: shape.to_vec(), data: (0..count).map(&mut of).collect() })
    }

    /// The elements at `offset + sum(index * stride)`, for indices of a shape.
    fn picked(&self, shape: Vec<usize>, offset: isize, steps: &[isize]) -> Option<Self> {
        let count = elements(&shape)?;
        let mut data = Vec::with_capacity(count);
        if count > 0 {
            // Rows are copied whole where the elements lie side by side: most axes of most steps do.
            let (mut row, mut outer) = (1usize, shape.len());
            while outer > 0
                && (shape[outer - 1] == 1 || steps[outer - 1] == isize::try_from(row).ok()?)
            {
                outer -= 1;
                row *= shape[outer];
            }
            let (length, step) = match outer.checked_sub(1) {
                Some(last) => (shape[last], steps[last]),
                None => (1, 0),
            };
            let outer = outer.saturating_sub(1);
            let mut index = vec![0usize; outer];
            let mut at = offset;
            loop {
                let mut from = at;
                for _ in 0..length {
                    let start = usize::try_from(from).ok()?;
                    match row {
                        1 => data.push(self.data.get(start)?.clone()),
                        _ => data.extend_from_slice(self.data.get(start..start.checked_add(row)?)?),
                    }
                    from += step;
                }
                let Some(axis) = (0..outer).rev().find(|&axis| index[axis] + 1 < shape[axis])
                else {
                    break;
                };
                for reset in axis + 1..outer {
                    at -= steps[reset] * isize::try_from(index[reset]).ok()?;
                    index[reset] = 0;
                }
                index[axis] += 1;
                at += steps[axis];
            }
        }
        Some(Self { shape, data })
    }

    fn steps(&self) -> Vec<isize> {
        strides(&self.shape)
            .into_iter()
            .map(|stride| isize::try_from(stride).unwrap_or(isize::MAX))
            .collect()
    }

    pub(crate) fn reshaped(mut self, shape: Vec<usize>) -> Option<Self> {
        (elements(&shape)? == self.data.len()).then(|| {
            self.shape = shape;
            self
        })
    }

    pub(crate) fn transposed(&self, perm: &[usize]) -> Option<Self> {
        let steps = self.steps();
        let shape = perm.iter().map(|&at| self.shape[at]).collect();
        self.picked(shape, 0, &perm.iter().map(|&at| steps[at]).collect::<Vec<_>>())
    }

    pub(crate) fn sliced(&self, slices: &[AxisSlice]) -> Option<Self> {
        let (mut shape, mut steps, mut offset) = (self.shape.clone(), self.steps(), 0isize);
        for slice in slices {
            let at = axis(slice.axis, shape.len())?;
            let (start, count, step) = slice.range(self.shape[at])?;
            offset = offset.checked_add(steps[at].checked_mul(isize::try_from(start).ok()?)?)?;
            steps[at] = steps[at].checked_mul(isize::try_from(step).ok()?)?;
            shape[at] = count;
        }
        self.picked(shape, offset, &steps)
    }

    /// A part of an axis.
    fn part(&self, at: usize, start: usize, count: usize) -> Option<Self> {
        let steps = self.steps();
        let mut shape = self.shape.clone();
        if start.checked_add(count)? > shape[at] {
            return None;
        }
        shape[at] = count;
        self.picked(shape, steps[at].checked_mul(isize::try_from(start).ok()?)?, &steps)
    }

    /// An axis cut into parts of these sizes.
    pub(crate) fn parts(&self, at: usize, sizes: &[usize]) -> Option<Vec<Self>> {
        let mut start = 0;
        let mut parts = Vec::with_capacity(sizes.len());
        for &size in sizes {
            parts.push(self.part(at, start, size)?);
            start += size;
        }
        (start == self.shape[at]).then_some(parts)
    }

    /// Some indices of an axis, as an array of this shape.
    pub(crate) fn gathered(&self, at: usize, indices: &[i64], shape: Vec<usize>) -> Option<Self> {
        let parts = indices
            .iter()
            .map(|&index| self.part(at, axis(index, self.shape[at])?, 1))
            .collect::<Option<Vec<_>>>()?;
        Self::concatenated(&parts, at)?.reshaped(shape)
    }

    pub(crate) fn concatenated(parts: &[Self], at: usize) -> Option<Self> {
        let first = parts.first()?;
        let mut shape = first.shape.clone();
        shape[at] = 0;
        for part in parts {
            let agrees = part.shape.len() == shape.len()
                && part.shape.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == at || a == b);
            if !agrees {
                return None;
            }
            shape[at] = shape[at].checked_add(part.shape[at])?;
        }
        let rows = elements(&shape[..at])?;
        let mut data = Vec::with_capacity(elements(&shape)?);
        for row in 0..rows {
            for part in parts {
                let length = elements(&part.shape[at..])?;
                data.extend_from_slice(part.data.get(row * length..(row + 1) * length)?);
            }
        }
        Some(Self { shape, data })
    }

    pub(crate) fn expanded(&self, shape: &[usize]) -> Option<Self> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        let own = self.steps();
        let mut steps = vec![0isize; shape.len()];
        for (at, &size) in self.shape.iter().enumerate() {
            if size == shape[missing + at] {
                steps[missing + at] = own[at];
            } else if size != 1 {
                return None;
            }
        }
        self.picked(shape.to_vec(), 0, &steps)
    }

    pub(crate) fn arithmetic(op: &str, a: &Self, b: &Self, shape: &[usize]) -> Option<Self> {
        let (a, b) = (a.expanded(shape)?, b.expanded(shape)?);
        let data = a.data.iter().zip(&b.data).map(|(a, b)| T::arithmetic(op, a, b));
        Some(Self { shape: shape.to_vec(), data: data.collect::<Option<_>>()? })
    }

    /// The same with these axes last, and the number of elements that they hold.
    pub(crate) fn with_last(&self, axes: &[usize]) -> Option<(Self, usize)> {
        let (last, others): (Vec<usize>, Vec<usize>) =
            (0..self.shape.len()).partition(|at| axes.contains(at));
        let length = elements(&last.iter().map(|&at| self.shape[at]).collect::<Vec<_>>())?;
        Some((self.transposed(&[others, last].concat())?, length))
    }

    pub(crate) fn reduced(&self, op: &str, axes: &[usize], shape: Vec<usize>) -> Option<Self> {
        let (sorted, length) = self.with_last(axes)?;
        let rows = (0..elements(&shape)?).map(|row| &sorted.data[row * length..][..length]);
        let data = rows.map(|row| T::reduced(op, row)).collect::<Option<_>>()?;
        Some(Self { shape, data })
    }
}

impl Array<f64> {
    /// `GridSample`, bilinear, zero outside, corners not aligned, written after the standard's definition.
    fn grid_sampled(&self, grid: &Self) -> Option<Self> {
        let (&[batch, channels, height, width], &[grid_batch, lines, columns, 2]) =
            (&self.shape[..], &grid.shape[..])
        else {
            return None;
        };
        let shape = [batch, channels, lines, columns];
        if batch != grid_batch {
            return None;
        }
        let places = elements(&[lines, columns])?;
        let mut data = vec![0.0; elements(&shape)?];
        for b in 0..batch {
            for place in 0..places {
                let at = 2 * (b * places + place);
                let x = ((grid.data[at] + 1.0) * width as f64 - 1.0) / 2.0;
                let y = ((grid.data[at + 1] + 1.0) * height as f64 - 1.0) / 2.0;
                let (left, top) = (x.floor(), y.floor());
                for (column, share_x) in [(left, left + 1.0 - x), (left + 1.0, x - left)] {
                    for (line, share_y) in [(top, top + 1.0 - y), (top + 1.0, y - top)] {
                        let is_inside = column >= 0.0
                            && column < width as f64
                            && line >= 0.0
                            && line < height as f64;
                        if !is_inside {
                            continue;
                        }
                        let pixel = line as usize * width + column as usize;
                        for c in 0..channels {
                            let row = b * channels + c;
                            data[row * places + place] +=
                                share_x * share_y * self.data[row * height * width + pixel];
                        }
                    }
                }
            }
        }
        Some(Self { shape: shape.to_vec(), data })
    }
}
