//! Arguments of operators, wherever an opset keeps them: axes, permutations, sizes of parts, slices.

use crate::dim::{Dim, Dims};
use crate::proto::Node;

/// Whole numbers of a tensor, where they are known.
pub(crate) type Known<'a> = dyn Fn(&str) -> Option<Vec<i64>> + 'a;

/// An axis counted from the front.
pub(crate) fn axis(number: i64, rank: usize) -> Option<usize> {
    let rank_number = i64::try_from(rank).ok()?;
    let number = if number < 0 { number.checked_add(rank_number)? } else { number };
    usize::try_from(number).ok().filter(|&axis| axis < rank)
}

/// A list that is an attribute in old opsets and an input in new ones: `Some(None)` if the node has neither, `None` if the
/// numbers are not known.
fn list(known: &Known<'_>, node: &Node, name: &str, index: usize) -> Option<Option<Vec<i64>>> {
    match (node.ints(name), node.input(index)) {
        (Some(list), _) => Some(Some(list.to_vec())),
        (None, Some(input)) => known(input).map(Some),
        (None, None) => Some(None),
    }
}

/// The axes of `Unsqueeze`, `Squeeze` and reductions. Empty if none are given.
pub(crate) fn axes(known: &Known<'_>, node: &Node) -> Option<Vec<i64>> {
    Some(list(known, node, "axes", 1)?.unwrap_or_default())
}

/// Where each axis of the result comes from.
pub(crate) fn permutation(node: &Node, rank: usize) -> Option<Vec<usize>> {
    let Some(perm) = node.ints("perm").filter(|perm| !perm.is_empty()) else {
        return Some((0..rank).rev().collect());
    };
    let perm: Vec<usize> = perm.iter().map(|&at| axis(at, rank)).collect::<Option<_>>()?;
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    sorted.iter().copied().eq(0..rank).then_some(perm)
}

/// A shape with axes of size one.
pub(crate) fn unsqueezed<T: Clone>(dims: &[T], axes: &[i64], one: &T) -> Option<Vec<T>> {
    let rank = dims.len().checked_add(axes.len()).filter(|&rank| rank <= 16)?;
    let axes: Vec<usize> = axes.iter().map(|&at| axis(at, rank)).collect::<Option<_>>()?;
    let mut rest = dims.iter();
    (0..rank)
        .map(|at| if axes.contains(&at) { Some(one.clone()) } else { rest.next().cloned() })
        .collect()
}

/// A shape without these axes, or without all of size one.
pub(crate) fn squeezed(dims: &Dims, axes: &[i64]) -> Option<Dims> {
    let chosen: Vec<usize> = axes.iter().map(|&at| axis(at, dims.len())).collect::<Option<_>>()?;
    let stays = |(at, dim): &(usize, &Dim)| {
        if axes.is_empty() { dim.known() != Some(1) } else { !chosen.contains(at) }
    };
    Some(dims.iter().enumerate().filter(stays).map(|(_, dim)| dim.clone()).collect())
}

/// The sizes that `Split` cuts its axis into.
pub(crate) fn split_sizes(
    known: &Known<'_>,
    node: &Node,
    whole: Option<usize>,
) -> Option<Vec<usize>> {
    if let Some(sizes) = list(known, node, "split", 1)? {
        return sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    }
    let (whole, parts) = (whole?, node.output.len());
    let chunk = whole.div_ceil(parts.max(1));
    (0..parts).map(|part| Some(chunk.min(whole.saturating_sub(part * chunk)))).collect()
}

/// What `Slice` takes of one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisSlice {
    pub(crate) axis: i64,
    start: i64,
    end: i64,
    step: i64,
}

impl AxisSlice {
    /// The first index, how many, and the step, in an axis of this size.
    pub(crate) fn range(&self, size: usize) -> Option<(usize, usize, i64)> {
        let size = i64::try_from(size).ok()?;
        let from_front = |x: i64| if x < 0 { x.saturating_add(size) } else { x };
        let (start, end) = (from_front(self.start), from_front(self.end));
        let (start, count) = if self.step > 0 {
            let (start, end) = (start.clamp(0, size), end.clamp(0, size));
            (start, (end - start).max(0) as u64)
        } else if self.step < 0 {
            let (start, end) = (start.clamp(-1, size - 1), end.clamp(-1, size - 1));
            (start, (start - end).max(0) as u64)
        } else {
            return None;
        };
        let count = usize::try_from(count.div_ceil(self.step.unsigned_abs())).ok()?;
        Some((usize::try_from(start).unwrap_or(0), count, self.step))
    }

    /// How many indices there are, in an axis that reaches to the end, if both bounds count from the front.
    pub(crate) fn size_from_front(&self) -> Option<i64> {
        let is_inside = self.start >= 0 && self.end >= self.start && self.end < i64::from(i32::MAX);
        (is_inside && self.step == 1).then(|| self.end - self.start)
    }
}

/// What `Slice` takes, axis by axis.
pub(crate) fn slices(known: &Known<'_>, node: &Node) -> Option<Vec<AxisSlice>> {
    let list = |name: &str, index: usize| list(known, node, name, index);
    let (starts, ends) = (list("starts", 1)??, list("ends", 2)??);
    let axes = list("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = list("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return None;
    }
    Some(
        (0..starts.len())
            .map(|i| AxisSlice { axis: axes[i], start: starts[i], end: ends[i], step: steps[i] })
            .collect(),
    )
}

/// The axes that `Slice` cuts, where its bounds are not known.
pub(crate) fn sliced_axes(known: &Known<'_>, node: &Node) -> Option<Vec<i64>> {
    list(known, node, "axes", 3)?
}
