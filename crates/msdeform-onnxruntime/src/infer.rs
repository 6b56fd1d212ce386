//! The shape of a node's output before it runs, as far as the shapes of its inputs are known.

use crate::api::{Axis, ShapeContext};
use crate::error::Error;
use crate::operators::NodeKind;

/// Sets the shape of the output, unless an axis has neither a size nor a name: a made-up name could be another axis's as
/// well. Shapes are checked when the node runs.
pub(crate) fn infer(kind: &NodeKind, context: &ShapeContext<'_>) -> Result<(), Error> {
    let (value, last) = (context.input(0)?, kind.input_count() - 1);
    let (offsets, weights) = (context.input(last - 1)?, context.input(last)?);
    let [first, .., heads, channels] = value[..] else { return Ok(()) };
    let axis = |axis: usize| [&offsets, &weights].map(|axes| axes.get(axis).copied());
    let batch = known([Some(first)].into_iter().chain(axis(0)));
    let queries = known(axis(1));
    let heads = known([Some(heads)].into_iter().chain(axis(2)));
    let axes = if kind.splits_heads {
        vec![batch, queries, heads, channels]
    } else {
        vec![batch, queries, product(heads, channels)]
    };
    if axes.contains(&Axis::Unknown) {
        return Ok(());
    }
    context.set_output(&axes)
}

/// The best that several tensors say about one axis: a size, else a name.
fn known<'a>(found: impl IntoIterator<Item = Option<Axis<'a>>>) -> Axis<'a> {
    let found = found.into_iter().flatten();
    found.fold(Axis::Unknown, |best, axis| match (best, axis) {
        (Axis::Size(_), _) | (_, Axis::Unknown) => best,
        (Axis::Named(_), Axis::Named(_)) => best,
        _ => axis,
    })
}

fn product<'a>(first: Axis<'_>, second: Axis<'_>) -> Axis<'a> {
    match (first, second) {
        (Axis::Size(first), Axis::Size(second)) => {
            first.checked_mul(second).map_or(Axis::Unknown, Axis::Size)
        }
        _ => Axis::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_better_than_a_name_and_a_name_than_nothing() {
        let (size, name) = (Axis::Size(3), Axis::Named(c"batch"));
        assert_eq!(known([Some(name), None, Some(size)]), size);
        assert_eq!(known([Some(Axis::Unknown), Some(name)]), name);
        assert_eq!(known([None, Some(Axis::Unknown)]), Axis::Unknown);
    }

    #[test]
    fn a_product_is_known_where_both_factors_are() {
        assert_eq!(product(Axis::Size(8), Axis::Size(32)), Axis::Size(256));
        assert_eq!(product(Axis::Size(8), Axis::Named(c"channels")), Axis::Unknown);
        assert_eq!(product(Axis::Size(i64::MAX), Axis::Size(2)), Axis::Unknown);
    }
}
