//! How the axes of a site lie in a tensor of the model, learned from marks that went through the graph.

use crate::array::{Mark, strides};
use crate::site::Adaptation;

/// A run of an affine index map: the mark of the first element and the step along each axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Affine {
    pub(crate) offset: i64,
    pub(crate) steps: Vec<i64>,
}

/// The affine map behind marks, if they are one.
pub(crate) fn affine(marks: &[Mark], shape: &[usize]) -> Option<Affine> {
    let offset = i64::from(*marks.first()?);
    let own = strides(shape);
    let step = |axis: usize| {
        if shape[axis] > 1 {
            marks.get(own[axis]).map(|&mark| i64::from(mark) - offset)
        } else {
            Some(0)
        }
    };
    let steps = (0..shape.len()).map(step).collect::<Option<Vec<i64>>>()?;
    let mut index = vec![0usize; shape.len()];
    for &mark in marks {
        let place: i64 = index.iter().zip(&steps).map(|(&at, step)| at as i64 * step).sum();
        if i64::from(mark) != offset + place {
            return None;
        }
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Some(Affine { offset, steps })
}

/// An axis of the operator: how many, and the step between two in a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) size: usize,
    pub(crate) step: i64,
}

/// The steps from a tensor of this shape to one whose axes are these in their order, or nothing if it holds more or
/// less. An axis may be two in the tensor, if it stays so. `open` is the axis whose size is written as -1 where the tensor
/// has to be reshaped first, `None` where it must not be.
pub(crate) fn steps_to(
    axes: &[Axis],
    shape: &[usize],
    open: Option<usize>,
) -> Option<Vec<Adaptation>> {
    // Axes of size one can stand anywhere: they stay where they are in the operator's order.
    let mut order: Vec<usize> = (0..axes.len()).filter(|&at| axes[at].size > 1).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(axes[at].step));
    let mut expected = 1i64;
    for &at in order.iter().rev() {
        if axes[at].step != expected {
            return None;
        }
        expected = expected.checked_mul(i64::try_from(axes[at].size).ok()?)?;
    }
    if usize::try_from(expected).ok()? != shape.iter().product::<usize>() {
        return None;
    }
    let is_sorted = order.windows(2).all(|pair| pair[0] < pair[1]);
    if is_sorted {
        let sizes: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
        if merges_to(shape, &sizes) {
            return Some(vec![]);
        }
    }
    for at in (0..axes.len()).filter(|&at| axes[at].size == 1) {
        let place = order.iter().position(|&other| other > at).unwrap_or(order.len());
        order.insert(place, at);
    }
    let sizes: Vec<usize> = order.iter().map(|&at| axes[at].size).collect();
    let mut steps = Vec::new();
    if shape != sizes {
        let open = open?;
        let size =
            |&at: &usize| if at == open { Some(-1) } else { i64::try_from(axes[at].size).ok() };
        steps.push(Adaptation::Reshape(order.iter().map(size).collect::<Option<_>>()?));
    }
    if !order.iter().copied().eq(0..axes.len()) {
        let from = |at: usize| {
            order.iter().position(|&other| other == at).and_then(|place| i64::try_from(place).ok())
        };
        steps.push(Adaptation::Transpose((0..axes.len()).map(from).collect::<Option<_>>()?));
    }
    Some(steps)
}

/// Whether a shape is this one, or this one with its axis before the last two, or the last, cut in two: levels and points.
fn merges_to(shape: &[usize], sizes: &[usize]) -> bool {
    if shape == sizes {
        return true;
    }
    shape.len() == sizes.len() + 1
        && (0..sizes.len()).any(|at| {
            at >= 3
                && shape[..at] == sizes[..at]
                && shape[at] * shape[at + 1] == sizes[at]
                && shape[at + 2..] == sizes[at + 1..]
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(size: usize, step: i64) -> Axis {
        Axis { size, step }
    }

    #[test]
    fn what_lies_in_order_needs_no_steps() {
        let axes = [axis(2, 60), axis(10, 6), axis(3, 2), axis(2, 1)];
        assert_eq!(steps_to(&axes, &[2, 10, 3, 2], Some(0)), Some(vec![]));
    }

    #[test]
    fn channels_before_pixels_are_transposed_and_folded_axes_unfolded() {
        // [N, M, D, S]
        let axes = [axis(2, 60), axis(10, 1), axis(3, 20), axis(2, 10)];
        let transpose = Adaptation::Transpose(vec![0, 3, 1, 2]);
        assert_eq!(steps_to(&axes, &[2, 3, 2, 10], Some(0)), Some(vec![transpose.clone()]));
        let unfold = Adaptation::Reshape(vec![-1, 3, 2, 10]);
        assert_eq!(steps_to(&axes, &[6, 2, 10], Some(0)), Some(vec![unfold, transpose]));
        assert_eq!(steps_to(&axes, &[6, 2, 10], None), None);
    }

    #[test]
    fn gaps_are_no_layout() {
        let axes = [axis(2, 120), axis(10, 12), axis(3, 4), axis(2, 2)];
        assert_eq!(steps_to(&axes, &[2, 10, 3, 2], Some(0)), None);
        assert_eq!(affine(&[0, 1, 3], &[3]), None);
        assert_eq!(affine(&[4, 3, 2], &[3]), Some(Affine { offset: 4, steps: vec![-1] }));
    }
}
