//! Recognises the form `gather` as `gather.rs` writes it: one gather of all corners, weighted and added up by a `MatMul`.
//!
//! The search in `find.rs` knows sums over weighted samples of a level, and this spelling has neither. Its tensors are found by the
//! way that its nodes are connected. Whether they are the attention is decided as for any site: by running it against the reference.

use crate::dim::{Dim, Sizes};
use crate::evaluate::{Context, Reason};
use crate::form::Form;
use crate::proto::Node;
use crate::site::{Evidence, Level, Levels, Operand, Site};

/// How `rewrite` writes gathers, which differs from how exporters write them.
pub(crate) const SPELLING: &str = "one Gather of all corners and one MatMul";
/// Images, queries and the sides of the first level for a run, where these are open, and others for a second run.
const TRIALS: [[usize; 3]; 2] = [[2, 3, 3], [3, 5, 4]];
/// Queries of a run, where the model has more than four times as many.
const FEW_QUERIES: usize = 7;

/// The attention whose last product is this `MatMul`; nothing if its nodes are connected in another way.
pub(crate) fn at_product(context: &Context<'_>, index: usize) -> Result<Option<Site>, Reason> {
    let Some(found) = Parts::of(context, index) else { return Ok(None) };
    let mut site = found.site(context)?;
    site.evidence = Some(confirmed(context, &site, found.first_rows)?);
    Ok(Some(site))
}

/// What running the nodes between the tensors of a site and its output shows, with two sets of numbers for open sizes.
///
/// `first_rows` names a tensor that follows from the value alone. It is computed in full before a run with few queries: an encoder
/// has as many pixels as queries, and the rows of the second image start behind all pixels of the first.
pub(crate) fn confirmed(
    context: &Context<'_>,
    site: &Site,
    first_rows: Option<&str>,
) -> Result<Evidence, Reason> {
    let is_known = |dim: &Option<Dim>| dim.as_ref().and_then(Dim::size).is_some();
    let mut evidence = run(context, site, first_rows, TRIALS[0])?;
    let has_known_levels = matches!(site.levels, Levels::Known(_));
    if !is_known(&site.batch) || !is_known(&site.queries) || !has_known_levels {
        let again = run(context, site, first_rows, TRIALS[1])?;
        evidence.max_error = evidence.max_error.max(again.max_error);
    }
    Ok(evidence)
}

/// The tensors of the site, and the constants that tell its levels.
struct Parts<'a> {
    anchor: usize,
    nodes: [usize; 2],
    value: &'a str,
    locations: &'a str,
    weights: &'a str,
    /// The first row of each image; a single image has none.
    first_rows: Option<&'a str>,
    levels: Levels,
    points: Vec<usize>,
    heads: usize,
}

impl<'a> Parts<'a> {
    fn of(context: &Context<'a>, index: usize) -> Option<Self> {
        let graph = &context.graph;
        let node = graph.node(index);
        let above = |node: &'a Node, at: usize, op: &str| -> Option<&'a Node> {
            let above = graph.node(graph.producer(node.input(at)?)?);
            above.is(op).then_some(above)
        };
        let pixels = above(node, 1, "Gather")?;
        let value = above(pixels, 0, "Flatten")?.input(0)?;
        let mut shares = above(node, 0, "Reshape")?;
        shares = above(shares, 0, "Cast").unwrap_or(shares);
        let share = above(above(shares, 0, "Concat")?, 0, "Mul")?;
        let weights = above(above(share, 1, "Mul")?, 1, "Reshape")?.input(0)?;
        let corner = above(above(above(pixels, 1, "Reshape")?, 0, "Concat")?, 0, "Add")?;
        let first_rows = above(corner, 1, "Add").and_then(|upper| upper.input(1));
        let rows = above(above(corner, 0, "Split")?, 0, "Add")?;
        let inside = above(above(above(rows, 0, "Mul")?, 0, "Cast")?, 0, "Where")?;
        let first = above(above(inside, 1, "Concat")?, 0, "Floor")?;
        let fine = above(above(first, 0, "Add")?, 1, "Mul")?;
        let planes = above(above(fine, 0, "Sub")?, 0, "Gather")?;
        let locations = above(planes, 0, "Reshape")?.input(0)?;
        let &[anchor] = graph.consumers(node.output.first()?) else { return None };
        let (sizes, firsts) = (fine.input(1)?, rows.input(1)?);
        let (levels, points, heads) = constant_levels(context, sizes, firsts)
            .or_else(|| open_levels(context, sizes, firsts))?;
        graph.node(anchor).is("Reshape").then_some(Self {
            anchor,
            nodes: [graph.producer(node.input(1)?)?, index],
            value,
            locations,
            weights,
            first_rows,
            levels,
            points,
            heads,
        })
    }

    fn site(&self, context: &Context<'_>) -> Result<Site, Reason> {
        let dims = |name: &str| {
            let dims = context.facts.shape(name);
            dims.ok_or_else(|| format!("the shape of `{name}` is not known"))
        };
        let (value, locations, weights) =
            (dims(self.value)?, dims(self.locations)?, dims(self.weights)?);
        let ([batch, _, _, channels], Some(queries)) = (&value[..], locations.get(1)) else {
            return Err("its value does not have four axes".into());
        };
        let operand =
            |tensor: &str, rank| Operand { tensor: tensor.to_owned(), steps: vec![], rank };
        let graph = &context.graph;
        let node = graph.node(self.anchor);
        let output = node.output.first().ok_or("it has no output")?.clone();
        Ok(Site {
            form: Form::Gather,
            spelling: SPELLING.into(),
            anchor: self.anchor,
            name: node.label().to_owned(),
            nodes: self.nodes.iter().map(|&at| graph.node(at).label().to_owned()).collect(),
            value: operand(self.value, 4),
            samples: Some([
                operand(self.locations, locations.len()),
                operand(self.weights, weights.len()),
            ]),
            levels: self.levels.clone(),
            points: Some(self.points.clone()),
            batch: Some(batch.clone()),
            queries: Some(queries.clone()),
            heads: Some(self.heads),
            channels: channels.size(),
            is_output_split: context.facts.shape(&output).is_some_and(|dims| dims.len() == 4),
            output,
            is_output_transposed: false,
            evidence: None,
        })
    }
}

/// Levels, their points and the number of heads, from the widths and heights of all samples' levels and the rows of their first
/// pixels.
fn constant_levels(
    context: &Context<'_>,
    sizes: &str,
    firsts: &str,
) -> Option<(Levels, Vec<usize>, usize)> {
    let graph = &context.graph;
    let sizes = graph.constant(sizes)?.read_numbers()?;
    let &[heads, _] = &graph.constant(firsts)?.shape()?[..] else { return None };
    let firsts = graph.constant(firsts)?.read_numbers()?;
    let total = sizes.len() / 2;
    let (widths, heights) = sizes.split_at(total);
    let starts = firsts.get(total..2 * total)?;
    let (mut levels, mut points): (Vec<Level>, Vec<usize>) = (Vec::new(), Vec::new());
    for ((&width, &height), &start) in widths.iter().zip(heights).zip(starts) {
        let is_size = |x: f64| (0.0..f64::from(u32::MAX)).contains(&x) && x.fract() == 0.0;
        if ![width, height, start].into_iter().all(is_size) {
            return None;
        }
        let start = start as usize / heads.max(1);
        let level = Level { height: height as usize, width: width as usize, start };
        match (levels.last(), points.last_mut()) {
            (Some(last), Some(count)) if *last == level => *count += 1,
            _ => {
                levels.push(level);
                points.push(1);
            }
        }
    }
    Some((Levels::Known(levels), points, heads))
}

/// The same of nodes that `open.rs` writes.
fn open_levels(
    context: &Context<'_>,
    sizes: &str,
    firsts: &str,
) -> Option<(Levels, Vec<usize>, usize)> {
    let graph = &context.graph;
    let above = |name: &str, op: &str| {
        let node = graph.node(graph.producer(name)?);
        node.is(op).then_some(node)
    };
    let sides = above(above(sizes, "Cast")?.input(0)?, "Gather")?;
    let flat = above(above(sides.input(0)?, "Cast")?.input(0)?, "Reshape")?;
    let firsts = above(firsts, "Add")?;
    let &[heads, _] = &graph.constant(firsts.input(1)?)?.shape()?[..] else { return None };
    let scaled = above(above(firsts.input(0)?, "Concat")?.input(1)?, "Mul")?;
    let picked = above(scaled.input(0)?, "Gather")?;
    let starts = above(picked.input(0)?, "Cast")?;
    let level_of_sample = graph.constant(picked.input(1)?)?.read_numbers()?;
    let mut points: Vec<usize> = Vec::new();
    for level in level_of_sample {
        match points.len().checked_sub(1) {
            Some(last) if level == last as f64 => points[last] += 1,
            _ if level == points.len() as f64 => points.push(1),
            _ => return None,
        }
    }
    let name = |node: &Node| node.input(0).map(str::to_owned);
    Some((Levels::Tensors { shapes: name(flat)?, starts: name(starts)? }, points, heads))
}

/// Levels of a run; those that are open get the sizes of a trial, except where the model ties them to each other.
fn levels_of_run(
    context: &Context<'_>,
    sizes: &mut Sizes,
    site: &Site,
    side: usize,
) -> Result<Vec<Level>, Reason> {
    let count = site.points.as_ref().map_or(0, Vec::len);
    let unknown = || "the sizes of its levels are not known".to_owned();
    let pairs = |sizes: &mut Sizes, level: usize, dims: Option<&[Dim]>| {
        let trial = [side + level, side + 2 + 2 * level].map(|side| side as i64);
        let of_side = |at: usize| match dims.and_then(|dims| dims.get(at)) {
            Some(dim) => {
                sizes.set_symbols(dim, &[trial[at], trial[1 - at]]);
                sizes.number(dim).unwrap_or(trial[at])
            }
            None => trial[at],
        };
        [0, 1].map(of_side)
    };
    let mut all = Vec::new();
    match &site.levels {
        Levels::Known(levels) => return Ok(levels.clone()),
        Levels::Tensors { shapes, .. } => {
            for level in 0..count {
                let dims = context.facts.numbers(shapes);
                all.push(pairs(sizes, level, dims.and_then(|dims| dims.get(2 * level..))));
            }
            sizes.set_numbers(shapes, all.concat());
        }
        Levels::Computed(names) => {
            for (level, name) in names.iter().enumerate() {
                let dims = context.facts.numbers(name);
                let last = dims.and_then(|dims| dims.get(dims.len().checked_sub(2)?..));
                let pair = pairs(sizes, level, last);
                sizes.set_numbers(name, [&[1, 1], &pair[..]].concat());
                all.push(pair);
            }
        }
    }
    let mut levels = Vec::new();
    let mut start = 0usize;
    for [height, width] in all {
        let side = |number: i64| usize::try_from(number).map_err(|_| unknown());
        let (height, width) = (side(height)?, side(width)?);
        levels.push(Level { height, width, start });
        let area = height.checked_mul(width).ok_or_else(unknown)?;
        start = start.checked_add(area).ok_or_else(unknown)?;
    }
    if let Levels::Tensors { starts, .. } = &site.levels
        && context.numbers(sizes, starts).is_none()
    {
        sizes.set_numbers(starts, levels.iter().map(|level| level.start as i64).collect());
    }
    Ok(levels)
}

/// Runs the site with these numbers of images and queries, where they are open; with few queries, if that works.
fn run(
    context: &Context<'_>,
    site: &Site,
    first_rows: Option<&str>,
    [images, queries, side]: [usize; 3],
) -> Result<Evidence, Reason> {
    let mut sizes = Sizes::default();
    let levels = levels_of_run(context, &mut sizes, site, side)?;
    let is_open = !matches!(site.levels, Levels::Known(_));
    let mut set =
        |dim: Option<&Dim>, size: usize| dim.into_iter().for_each(|dim| sizes.set(dim, size));
    set(site.batch.as_ref(), images);
    let pixels = levels.iter().map(|level| level.start + level.height * level.width).max();
    let value = context.facts.shape(&site.value.tensor);
    let pixels_of_value = value.and_then(|dims| dims.get(1));
    set(pixels_of_value.filter(|_| is_open), pixels.unwrap_or(0));
    // An encoder has as many queries as pixels, and any of its tensors may have the name of the one or of the other.
    let operands = site.samples.iter().flatten().filter(|operand| operand.steps.is_empty());
    let of_operand = |operand: &Operand| context.facts.shape(&operand.tensor)?.get(1);
    let of_queries: Vec<&Dim> =
        site.queries.iter().chain(operands.filter_map(of_operand)).collect();
    let queries = of_queries.iter().find_map(|dim| sizes.size(dim)).unwrap_or(queries);
    of_queries.into_iter().for_each(|dim| sizes.set(dim, queries));
    if let Some(dim) = pixels_of_value {
        sizes.set(dim, pixels.unwrap_or(0));
    }
    // Symbols of these tensors may be others than those of the value.
    let (total, levels_of) = (site.total_points().unwrap_or(0), levels.len());
    let front = [&site.batch, &site.queries].map(|dim| dim.as_ref().and_then(Dim::size));
    let front = [front[0].unwrap_or(images), front[1].unwrap_or(queries), site.heads.unwrap_or(0)];
    let each = site.uniform_points().unwrap_or(0);
    for (operand, end) in site.samples.iter().flatten().zip([&[2][..], &[]]) {
        let Some(dims) = context.facts.shape(&operand.tensor) else { continue };
        for middle in [&[total][..], &[levels_of, each]] {
            let shape = [&front[..], middle, end].concat();
            if dims.len() == shape.len() {
                sizes.set_all(dims, &shape);
            }
        }
    }
    let known = site.queries.as_ref().and_then(Dim::size).filter(|&count| count > 4 * FEW_QUERIES);
    let known = known.filter(|_| !is_open);
    let site = &Site { levels: Levels::Known(levels.clone()), ..site.clone() };
    let attempt = |mut sizes: Sizes| {
        let of_value: Vec<&str> =
            [site.value.tensor.as_str()].into_iter().chain(first_rows).collect();
        let max_error = crate::check::against_reference(context, &mut sizes, site, &of_value)?;
        Ok(Evidence { max_error, sizes, levels: levels.clone() })
    };
    if let Some(count) = known {
        let mut few = sizes.clone();
        few.reduce(count, FEW_QUERIES);
        if let Ok(evidence) = attempt(few) {
            return Ok(evidence);
        }
    }
    attempt(sizes)
}
