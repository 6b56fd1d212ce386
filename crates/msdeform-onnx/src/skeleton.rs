//! A sum over weighted samples and what leads to it: candidates for the site's tensors, found by walking along the graph.

use std::collections::HashSet;

use crate::dim::Dims;
use crate::evaluate::{Context, Reason};
use crate::operators::{data_inputs, is_join, is_movement};
use crate::proto::{Node, data_type};
use crate::sampler::Sampler;

/// A sum over weighted samples, and what leads to it.
#[derive(Debug)]
pub(crate) struct Skeleton<'a> {
    pub(crate) reduce: usize,
    /// What samples the levels, in the order of the graph.
    pub(crate) samplers: Vec<Sampler<'a>>,
    /// Tensors that value, locations and weights may be taken from, nearest first.
    pub(crate) values: Vec<&'a str>,
    pub(crate) locations: Vec<&'a str>,
    pub(crate) weights: Vec<&'a str>,
    /// Tensors that may be the output, nearest first.
    pub(crate) outputs: Vec<&'a str>,
}

pub(crate) fn skeleton<'a>(
    context: &Context<'a>,
    reduce: usize,
) -> Result<Option<Skeleton<'a>>, Reason> {
    let graph = &context.graph;
    let node = graph.node(reduce);
    let Some(summed) = node.input(0) else { return Ok(None) };
    let Above { samplers, products, nearest } = above(context, summed);
    if let Some(&gather) = nearest.first() {
        return Err(format!(
            "`{}` takes the nearest pixel of each sample, as RT-DETRv2's method `discrete` does; the attention takes four",
            graph.node(gather).label()
        ));
    }
    if samplers.is_empty() {
        return Ok(None);
    }
    for node in samplers.iter().flat_map(|sampler| &sampler.nodes).map(|&at| graph.node(at)) {
        if node.is("GridSample") && !Context::samples_as_attention(node) {
            return Err(format!(
                "`{}` does not sample as the attention does: bilinear, zeros outside, corners not aligned",
                node.label()
            ));
        }
    }
    if products.is_empty() {
        return Err(format!("`{}` adds up samples that have no weights", node.label()));
    }
    let mut weights = Vec::new();
    for &product in &products {
        let without_samples = |name: &&str| above(context, name).samplers.is_empty();
        let operands = data_inputs(&context.facts, graph.node(product));
        let side: Vec<&str> = operands.into_iter().filter(without_samples).collect();
        let [side] = side[..] else {
            return Err(format!(
                "`{}` is no product of samples and weights",
                graph.node(product).label()
            ));
        };
        weights.push(lineage(context, side, false));
    }
    let places = samplers.iter().flat_map(|sampler| sampler.places.names());
    let places = shared(places.map(|name| lineage(context, name, true)).collect());
    let images = samplers.iter().map(|sampler| lineage(context, sampler.image, false));
    let found = Skeleton {
        reduce,
        values: shared(images.collect()),
        locations: places,
        weights: shared(weights),
        outputs: below(context, node.output.first().map_or("", String::as_str)),
        samplers,
    };
    for (what, names) in
        [("values", &found.values), ("locations", &found.locations), ("weights", &found.weights)]
    {
        if names.is_empty() {
            return Err(format!("the {what} of its levels come from different tensors"));
        }
    }
    Ok(Some(found))
}

/// Samplers, products, and gathers of the nearest pixel from which a tensor follows by moving elements about.
#[derive(Default)]
struct Above<'a> {
    samplers: Vec<Sampler<'a>>,
    products: Vec<usize>,
    nearest: Vec<usize>,
}

fn above<'a>(context: &Context<'a>, name: &'a str) -> Above<'a> {
    let (mut found, mut seen) = (Above::default(), HashSet::new());
    let mut waiting = vec![name];
    while let Some(name) = waiting.pop() {
        let Some(index) = context.graph.producer(name).filter(|&index| seen.insert(index)) else {
            continue;
        };
        let node = context.graph.node(index);
        if let Some(sampler) = context.samplers.of.get(name) {
            found.samplers.push(sampler.clone());
        } else if context.samplers.nearest.contains(&index) {
            found.nearest.push(index);
        } else if node.is("Mul") {
            found.products.push(index);
            waiting.extend(data_inputs(&context.facts, node));
        } else if is_join(node) || is_movement(&context.facts, node) {
            waiting.extend(data_inputs(&context.facts, node));
        }
    }
    found.samplers.sort_by_key(|sampler| sampler.nodes.first().copied());
    found.products.sort_unstable();
    found
}

/// Labels of the samplers' nodes that a sum adds up.
pub(crate) fn samplers_above(context: &Context<'_>, reduce: usize) -> Vec<String> {
    let summed = context.graph.node(reduce).input(0).unwrap_or("");
    let Above { samplers, nearest, .. } = above(context, summed);
    let nodes = samplers.into_iter().flat_map(|sampler| sampler.nodes).chain(nearest);
    nodes.map(|index| context.graph.node(index).label().to_owned()).collect()
}

/// A tensor and those that it follows from by moving elements, and by multiplying with or adding constants where asked.
fn lineage<'a>(context: &Context<'a>, name: &'a str, through_scales: bool) -> Vec<&'a str> {
    let mut names = vec![name];
    let mut seen = HashSet::new();
    let mut name = name;
    while let Some(index) = context.graph.producer(name).filter(|&index| seen.insert(index)) {
        let node: &'a Node = context.graph.node(index);
        let inputs = data_inputs(&context.facts, node);
        let is_scale = through_scales && ["Mul", "Add", "Sub", "Div"].iter().any(|op| node.is(op));
        name = match inputs[..] {
            [only] if is_movement(&context.facts, node) => only,
            [a, b] if is_scale && is_constant(context, b) => a,
            [a, b] if is_scale && is_constant(context, a) => b,
            _ => break,
        };
        names.push(name);
    }
    names
}

/// Whether a scale is one: a constant, or a size of the model.
fn is_constant(context: &Context<'_>, name: &str) -> bool {
    let scalar = |shape: Option<&Dims>| {
        shape.is_some_and(|dims| dims.iter().all(|dim| dim.known() == Some(1)))
    };
    context.float_constant(name).is_some()
        || context.facts.array(name).is_some()
        || (scalar(context.facts.shape(name)) && from_whole(context, name))
}

/// Whether a scalar follows from whole numbers alone.
fn from_whole(context: &Context<'_>, name: &str) -> bool {
    let Some(producer) = context.graph.producer(name) else { return false };
    let node = context.graph.node(producer);
    let kind = node.input(0).and_then(|name| context.facts.data_type(name));
    node.is("Cast") && kind.is_some_and(|kind| !data_type::has_fractions(kind))
}

/// What is in all lists, in the order of the first.
fn shared(lists: Vec<Vec<&str>>) -> Vec<&str> {
    let mut lists = lists.into_iter();
    let mut first = lists.next().unwrap_or_default();
    for list in lists {
        let names: HashSet<&str> = list.into_iter().collect();
        first.retain(|name| names.contains(name));
    }
    first
}

/// A tensor and those that follow from it alone by moving elements.
fn below<'a>(context: &Context<'a>, name: &'a str) -> Vec<&'a str> {
    let mut names = vec![name];
    let mut last = name;
    while names.len() < 16 {
        let users = context.graph.consumers(last).iter().map(|&user| context.graph.node(user));
        let users: Vec<&Node> = users.filter(|user| !user.is("Shape")).collect();
        let [user] = users[..] else { break };
        let moves_it = is_movement(&context.facts, user)
            && user.input(0) == Some(last)
            && user.output.len() == 1;
        if !moves_it || context.graph.is_kept(last) {
            break;
        }
        last = &user.output[0];
        names.push(last);
    }
    names
}
