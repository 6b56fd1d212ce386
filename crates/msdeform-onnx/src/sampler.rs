//! What takes samples of a level: a `GridSample` node, or four gathers and the arithmetic around them.
//!
//! Gathers are no template either. Gathers whose indices follow from the same `Floor` nodes belong together; what they are taken
//! from is the image, what is rounded down is the place in pixels, and the first tensor that depends on all four of them holds
//! the samples. Whether that is so is not asked here: the site is run on numbers, as sites of `GridSample` are.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::array::Array;
use crate::dim::Sizes;
use crate::evaluate::{Context, Reason};
use crate::facts::Facts;
use crate::graph::Graph;
use crate::operators::{data_inputs, is_movement};
use crate::proto::{Node, data_type};

/// Operators that indices go through.
const INDEX_ARITHMETIC: &str = "Add And Cast Clip Concat Expand Flatten Gather Identity Max Min Mod Mul Reshape Slice Split Squeeze Sub \
    Tile Transpose Unsqueeze Where";
/// Nodes from the first gather to the tensor that depends on all of them, at most.
const MOST_BETWEEN: usize = 400;

/// Where samples are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Places<'a> {
    /// x and y between -1 and 1, in the last axis.
    Grid(&'a str),
    /// One coordinate in pixels each.
    Pixels([&'a str; 2]),
}

impl<'a> Places<'a> {
    pub(crate) fn names(&self) -> Vec<&'a str> {
        match self {
            Self::Grid(name) => vec![name],
            Self::Pixels(names) => names.to_vec(),
        }
    }
}

/// Samples of one level.
#[derive(Clone, Debug)]
pub(crate) struct Sampler<'a> {
    pub(crate) image: &'a str,
    pub(crate) places: Places<'a>,
    pub(crate) output: &'a str,
    /// The nodes that it is known by: `GridSample`, or the gathers.
    pub(crate) nodes: Vec<usize>,
}

/// All samplers of a graph.
#[derive(Debug, Default)]
pub(crate) struct Samplers<'a> {
    /// By the tensor with the samples.
    pub(crate) of: HashMap<&'a str, Sampler<'a>>,
    /// Gathers of one pixel for each sample.
    pub(crate) nearest: HashSet<usize>,
    /// Gathers at rounded places that no sampler explains, and why.
    pub(crate) unclear: Vec<(usize, String)>,
}

impl<'a> Samplers<'a> {
    pub(crate) fn of(graph: &Graph<'a>, facts: &Facts) -> Self {
        let mut samplers = Self::default();
        let mut groups: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
        for index in 0..graph.model.nodes.len() {
            let node = graph.node(index);
            let (Some(first), Some(second)) = (node.input(0), node.input(1)) else { continue };
            let Some(output) = node.output.first() else { continue };
            if node.is("GridSample") {
                let sampler = Sampler {
                    image: first,
                    places: Places::Grid(second),
                    output,
                    nodes: vec![index],
                };
                samplers.of.insert(output, sampler);
                continue;
            }
            let is_gather = ["Gather", "GatherElements", "GatherND"].iter().any(|op| node.is(op));
            if !is_gather || facts.numbers(second).is_some() {
                continue;
            }
            match rounded(graph, facts, second) {
                Rounded::Down(floors) => match groups.iter_mut().find(|group| group.0 == floors) {
                    Some(group) => group.1.push(index),
                    None => groups.push((floors, vec![index])),
                },
                Rounded::ToNearest => {
                    samplers.nearest.insert(index);
                }
                Rounded::No => {}
            }
        }
        for (floors, gathers) in groups {
            match of_gathers(graph, facts, &floors, &gathers) {
                Ok(sampler) => {
                    samplers.of.insert(sampler.output, sampler);
                }
                Err(reason) => samplers.unclear.push((gathers[0], reason)),
            }
        }
        samplers
    }
}

/// How the numbers became whole that indices are made of.
enum Rounded {
    /// By these `Floor` nodes.
    Down(Vec<usize>),
    ToNearest,
    No,
}

fn rounded(graph: &Graph<'_>, facts: &Facts, indices: &str) -> Rounded {
    let (mut floors, mut seen) = (BTreeSet::new(), HashSet::new());
    let mut is_converted = false;
    let mut waiting = vec![indices];
    while let Some(name) = waiting.pop() {
        let Some(at) = graph.producer(name).filter(|&at| seen.insert(at)) else { continue };
        let node = graph.node(at);
        if node.is("Floor") {
            floors.insert(at);
            continue;
        }
        let is_arithmetic = INDEX_ARITHMETIC.split(' ').any(|op| node.is(op));
        if !is_arithmetic || seen.len() > MOST_BETWEEN {
            continue;
        }
        let kind = |name: &str| facts.data_type(name).unwrap_or(0);
        is_converted |= node.is("Cast")
            && node.int("to").is_some_and(|to| matches!(to, 6 | 7))
            && node.input(0).is_some_and(|name| data_type::has_fractions(kind(name)));
        let inputs = data_inputs(facts, node);
        // The mask of `Where` says nothing about the number.
        waiting.extend(inputs.into_iter().skip(usize::from(node.is("Where"))));
    }
    match floors.is_empty() {
        false => Rounded::Down(floors.into_iter().collect()),
        true if is_converted => Rounded::ToNearest,
        true => Rounded::No,
    }
}

fn of_gathers<'a>(
    graph: &Graph<'a>,
    facts: &Facts,
    floors: &[usize],
    gathers: &[usize],
) -> Result<Sampler<'a>, String> {
    let (&[x, y], &[first, _, _, _]) = (floors, gathers) else {
        return Err(format!(
            "{} gathers take pixels at {} rounded coordinates, not four at x and y",
            gathers.len(),
            floors.len()
        ));
    };
    let place = |at: usize| graph.node(at).input(0).ok_or("a Floor node has no input");
    let mut images = gathers.iter().map(|&at| image_of(graph, facts, graph.node(at)));
    let image = images.next().unwrap_or("");
    if images.any(|other| other != image) {
        return Err("its four gathers take pixels of different tensors".into());
    }
    let output = meeting(graph, gathers)
        .ok_or_else(|| format!("the pixels of `{}` are not added up", graph.node(first).label()))?;
    Ok(Sampler {
        image,
        places: Places::Pixels([place(x)?, place(y)?]),
        output,
        nodes: gathers.to_vec(),
    })
}

/// What a gather takes pixels of, before zeros were put around it.
fn image_of<'a>(graph: &Graph<'a>, facts: &Facts, node: &'a Node) -> &'a str {
    let given = node.input(0).unwrap_or("");
    let mut name = given;
    while let Some(above) = graph.producer(name).map(|at| graph.node(at)) {
        if above.is("Pad") {
            return above.input(0).unwrap_or(given);
        }
        match above.input(0).filter(|_| is_movement(facts, above)) {
            Some(input) => name = input,
            None => break,
        }
    }
    given
}

/// The first tensor that depends on all of these nodes.
fn meeting<'a>(graph: &Graph<'a>, nodes: &[usize]) -> Option<&'a str> {
    let mut reached: HashMap<usize, u64> = HashMap::new();
    let mut waiting: BTreeSet<usize> = nodes.iter().copied().collect();
    nodes.iter().enumerate().for_each(|(bit, &at)| *reached.entry(at).or_default() |= 1 << bit);
    let all = (1 << nodes.len()) - 1;
    for _ in 0..MOST_BETWEEN {
        let at = waiting.pop_first()?;
        let bits = *reached.get(&at)?;
        let node = graph.node(at);
        if bits == all {
            return node.output.first().map(String::as_str);
        }
        for &user in node.output.iter().flat_map(|name| graph.consumers(name)) {
            *reached.entry(user).or_default() |= bits;
            waiting.insert(user);
        }
    }
    None
}

/// Height and width of a level, and whether y comes before x.
#[derive(Debug)]
pub(crate) struct Sides {
    pub(crate) sides: [usize; 2],
    pub(crate) is_swapped: bool,
}

/// The sides of a level of which only the image's shape is known, from what two coordinates in pixels are for locations that are
/// all zero, all one, and their own positions. Locations are scaled by the sides, so that the ratio of the scales is theirs.
pub(crate) fn sides_of(
    one: &[Array<f64>; 3],
    other: &[Array<f64>; 3],
    image: &[usize],
) -> Result<Sides, Reason> {
    let scale = |[zeros, ones, places]: &[Array<f64>; 3]| {
        let first = |array: &Array<f64>| array.data.first().copied().ok_or("there are none");
        let shift = first(zeros)?;
        let factor = first(ones)? - shift;
        Ok::<_, Reason>((factor, ((first(places)? - shift) / factor).round()))
    };
    let ((one, first), (other, _)) = (scale(one)?, scale(other)?);
    let is_swapped = first.rem_euclid(2.0) != 0.0;
    let (x, y) = if is_swapped { (other, one) } else { (one, other) };
    let of_area = |area: usize| {
        let scale = (x * y / area as f64).sqrt();
        let (height, width) = ((y / scale).round(), (x / scale).round());
        let fits = (width * scale - x).abs() < 1e-6 * x.abs() && height * width == area as f64;
        fits.then_some([height as usize, width as usize])
    };
    let known = match *image {
        [.., height, width] if image.len() > 3 => {
            let area = height.checked_mul(width);
            area.and_then(of_area).filter(|sides| *sides == [height, width])
        }
        _ => None,
    };
    let flat = || image.last().copied().and_then(of_area);
    let sides = known.or_else(flat);
    let sides = sides
        .ok_or_else(|| format!("a level of the shape {image:?} is not that of its coordinates"))?;
    Ok(Sides { sides, is_swapped })
}

/// The tensor of the model whose last two numbers are the height and the width of a level: the target of its `Reshape`.
pub(crate) fn sizes_of(
    context: &Context<'_>,
    sizes: &Sizes,
    image: &str,
    [height, width]: [usize; 2],
) -> Option<String> {
    let mut name = image;
    loop {
        let node = context.graph.node(context.graph.producer(name)?);
        if node.is("Reshape") {
            let target = node.input(1)?;
            let numbers = context.numbers(sizes, target)?.data;
            let is_it = numbers.len() == 4 && numbers[2..] == [height as f64, width as f64];
            return is_it.then(|| target.to_owned());
        }
        name = node.input(0).filter(|_| node.is("Cast") || node.is("Identity"))?;
    }
}
