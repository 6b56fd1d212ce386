//! The attention as one node.

use crate::dim::Dim;
use crate::evaluate::Context;
use crate::facts::Facts;
use crate::form::{Form, Operator};
use crate::proto::Node;
use crate::site::{Level, Levels, Operand, Site};

/// What the node computes, as far as the graph tells.
pub(crate) fn at_node(
    context: &Context<'_>,
    index: usize,
    operator: &Operator,
) -> Result<Site, String> {
    let (node, facts) = (context.graph.node(index), &context.facts);
    let input = |at: usize| {
        node.input(at).ok_or_else(|| {
            format!("it has no input {at}; the operator takes {}", operator.inputs())
        })
    };
    let value = input(0)?;
    let (shapes, starts) = (input(1)?, input(2)?);
    let output = node.output.first().filter(|name| !name.is_empty()).ok_or("it has no output")?;
    let first = input(3)?;
    let (samples, locations, weights) = if operator.is_fused {
        (None, input(4)?, input(5)?)
    } else {
        let operand = |name: &str, otherwise: usize| Operand {
            tensor: name.to_owned(),
            steps: vec![],
            rank: facts.shape(name).map_or(otherwise, Vec::len),
        };
        let weights = input(4)?;
        // Without a shape, levels and points have axes of their own, as all operators take it.
        let (locations, of_weights) = (operand(first, 6), operand(weights, 5));
        (Some([locations, of_weights]), first, weights)
    };
    let levels = levels(facts, shapes, starts)?;
    let level_count = match &levels {
        Levels::Known(levels) => Some(levels.len()),
        Levels::Computed(levels) => Some(levels.len()),
        Levels::Tensors { shapes, .. } => facts.shape(shapes).and_then(|dims| dims.first()?.size()),
    };
    let dims = facts.shape(value).filter(|dims| dims.len() == 4);
    let sampling = facts.shape(locations).or_else(|| facts.shape(weights));
    Ok(Site {
        form: operator.form,
        spelling: format!("{}::{}", node.domain, node.op_type),
        anchor: index,
        name: node.label().to_owned(),
        nodes: vec![node.label().to_owned()],
        value: Operand { tensor: value.to_owned(), steps: vec![], rank: 4 },
        samples,
        levels,
        points: points(facts, node, locations, weights, level_count),
        batch: dims.map(|dims| dims[0].clone()),
        queries: sampling.and_then(|dims| dims.get(1)).cloned(),
        heads: dims.and_then(|dims| dims[2].size()),
        channels: dims.and_then(|dims| dims[3].size()),
        output: output.clone(),
        is_output_split: operator.form == Form::TensorRt,
        is_output_transposed: false,
        evidence: None,
    })
}

/// A size of 32 bits: areas of levels can be multiplied without looking.
fn size(number: i64) -> Option<usize> {
    u32::try_from(number).ok().and_then(|size| usize::try_from(size).ok())
}

fn levels(facts: &Facts, shapes: &str, starts: &str) -> Result<Levels, String> {
    let (Some(sizes), Some(firsts)) = (facts.known_numbers(shapes), facts.known_numbers(starts))
    else {
        return Ok(Levels::Tensors { shapes: shapes.to_owned(), starts: starts.to_owned() });
    };
    let level = |pair: &[i64], start: i64| {
        Some(Level { height: size(pair[0])?, width: size(pair[1])?, start: size(start)? })
    };
    let pairs = sizes.chunks_exact(2);
    let levels: Option<Vec<Level>> =
        pairs.zip(&firsts).map(|(pair, &start)| level(pair, start)).collect();
    levels
        .filter(|levels| 2 * levels.len() == sizes.len() && levels.len() == firsts.len())
        .map(Levels::Known)
        .ok_or_else(|| {
            format!("`{shapes}` and `{starts}` are not sizes and starts of the same levels")
        })
}

fn points(
    facts: &Facts,
    node: &Node,
    locations: &str,
    weights: &str,
    levels: Option<usize>,
) -> Option<Vec<usize>> {
    if let Some(points) = node.ints("points").filter(|points| !points.is_empty()) {
        return points.iter().map(|&count| size(count)).collect();
    }
    let levels = levels.filter(|&levels| levels > 0)?;
    let by_locations = facts
        .shape(locations)
        .map(|dims| (dims.len() == 6, dims.len().checked_sub(2).map(|at| &dims[at])));
    let by_weights = facts.shape(weights).map(|dims| (dims.len() == 5, dims.last()));
    let count = |(is_split, dim): (bool, Option<&Dim>)| {
        let size = dim?.size()?;
        if is_split { Some(size) } else { (size % levels == 0).then_some(size / levels) }
    };
    let count = by_locations.and_then(count).or_else(|| by_weights.and_then(count))?;
    (levels <= 4096).then(|| vec![count; levels])
}
