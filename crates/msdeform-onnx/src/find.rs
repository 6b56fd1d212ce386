//! Finds the attention in standard operators, however an exporter has spelled it.
//!
//! No template is compared. What stands around the `GridSample` nodes of a sum is run on marks instead of numbers, from
//! candidates for value, locations and weights: where each element ends up says how the candidate is laid out, and whether
//! the whole is the attention at all. Sizes that a model leaves open get two different sets of numbers, one after the other.

use std::collections::{BTreeSet, HashSet};

use crate::array::{Array, Mark, NOWHERE, elements};
use crate::dim::{Dim, Sizes};
use crate::evaluate::{Context, Reason};
use crate::form::Form;
use crate::layout::{Axis, affine, steps_to};
use crate::operators::{Call, data_inputs, is_join, is_movement};
use crate::proto::Node;
use crate::site::{Adaptation, Evidence, Level, Levels, Operand, Site};

/// Images and queries for a run, where these are open, and others for a second run.
const TRIALS: [[usize; 2]; 2] = [[2, 3], [3, 5]];

/// A sum over weighted samples, and what leads to it.
#[derive(Debug)]
struct Skeleton<'a> {
    reduce: usize,
    /// The `GridSample` nodes, in the order of the graph.
    samplers: Vec<usize>,
    /// Tensors that value, locations and weights may be taken from, nearest first.
    values: Vec<&'a str>,
    locations: Vec<&'a str>,
    weights: Vec<&'a str>,
    /// Tensors that may be the output, nearest first.
    outputs: Vec<&'a str>,
}

/// The attention whose sum is this node; nothing if it sums up other things.
pub(crate) fn at_sum(context: &Context<'_>, reduce: usize) -> Result<Option<Site>, Reason> {
    let Some(skeleton) = skeleton(context, reduce)? else { return Ok(None) };
    let (mut site, is_open) = learn(context, &skeleton, TRIALS[0])?;
    if is_open {
        let (again, _) = learn(context, &skeleton, TRIALS[1])?;
        if !site.agrees_with(&again) {
            return Err("it means something else for other numbers of images or queries".into());
        }
        if let (Some(one), Some(other)) = (&mut site.evidence, again.evidence) {
            one.max_error = one.max_error.max(other.max_error);
        }
    }
    Ok(Some(site))
}

fn skeleton<'a>(context: &Context<'a>, reduce: usize) -> Result<Option<Skeleton<'a>>, Reason> {
    let graph = &context.graph;
    let node = graph.node(reduce);
    let Some(summed) = node.input(0) else { return Ok(None) };
    let (samplers, products) = above(context, summed);
    if samplers.is_empty() {
        return Ok(None);
    }
    for &sampler in &samplers {
        let node = graph.node(sampler);
        if !Context::samples_as_attention(node) {
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
        let without_samples = |name: &&str| above(context, name).0.is_empty();
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
    let sides = |index: usize, through_scales: bool| {
        let names = samplers.iter().map(|&sampler| graph.node(sampler).input(index).unwrap_or(""));
        shared(names.map(|name| lineage(context, name, through_scales)).collect())
    };
    let found = Skeleton {
        reduce,
        values: sides(0, false),
        locations: sides(1, true),
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

/// `GridSample` nodes and products from which a tensor follows by moving elements about.
fn above(context: &Context<'_>, name: &str) -> (Vec<usize>, Vec<usize>) {
    let (mut samplers, mut products, mut seen) = (BTreeSet::new(), BTreeSet::new(), HashSet::new());
    let mut waiting = vec![name];
    while let Some(name) = waiting.pop() {
        let Some(index) = context.graph.producer(name).filter(|&index| seen.insert(index)) else {
            continue;
        };
        let node = context.graph.node(index);
        if node.is("GridSample") {
            samplers.insert(index);
            continue;
        }
        let is_product = node.is("Mul");
        if is_product {
            products.insert(index);
        }
        if is_product || is_join(node) || is_movement(&context.facts, node) {
            waiting.extend(data_inputs(&context.facts, node));
        }
    }
    (samplers.into_iter().collect(), products.into_iter().collect())
}

/// Labels of the `GridSample` nodes that a sum adds up.
pub(crate) fn samplers_above(context: &Context<'_>, reduce: usize) -> Vec<String> {
    let summed = context.graph.node(reduce).input(0).unwrap_or("");
    let samplers = above(context, summed).0;
    samplers.into_iter().map(|index| context.graph.node(index).label().to_owned()).collect()
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
            [a, b] if is_scale && context.float_constant(b).is_some() => a,
            [a, b] if is_scale && context.float_constant(a).is_some() => b,
            _ => break,
        };
        names.push(name);
    }
    names
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

/// What one set of numbers for the open sizes teaches.
#[derive(Debug)]
struct Lesson<'c, 'a> {
    context: &'c Context<'a>,
    skeleton: &'c Skeleton<'a>,
    sizes: Sizes,
    batch: usize,
    queries: usize,
}

fn learn(
    context: &Context<'_>,
    skeleton: &Skeleton<'_>,
    [trial_batch, trial_queries]: [usize; 2],
) -> Result<(Site, bool), Reason> {
    // Of several tensors of such a rank the farthest: nearer ones may have their axes in another order.
    let known = |names: &[&str], ranks: std::ops::RangeInclusive<usize>, at: usize| {
        let mut shapes = names.iter().rev().filter_map(|name| context.facts.shape(name));
        shapes.find(|dims| ranks.contains(&dims.len())).and_then(|dims| dims[at].size())
    };
    let batch = known(&skeleton.values, 4..=4, 0)
        .or_else(|| known(&skeleton.locations, 5..=6, 0))
        .or_else(|| known(&skeleton.weights, 4..=5, 0));
    let grids = skeleton.samplers.iter().filter_map(|&at| context.graph.node(at).input(1));
    let grids: Vec<&str> = grids.collect();
    let queries = known(&grids, 4..=4, 1)
        .or_else(|| known(&skeleton.locations, 5..=6, 1))
        .or_else(|| known(&skeleton.weights, 4..=5, 1));
    let lesson = Lesson {
        context,
        skeleton,
        sizes: Sizes::default(),
        batch: batch.unwrap_or(trial_batch),
        queries: queries.unwrap_or(trial_queries),
    };
    Ok((lesson.site()?, batch.is_none() || queries.is_none()))
}

/// Locations as they were found.
struct Locations {
    points: Vec<usize>,
    /// The samplers, in the order of their levels.
    order: Vec<usize>,
    heads: usize,
    dims: [Option<Dim>; 2],
}

fn size(number: i64) -> Option<usize> {
    usize::try_from(number).ok()
}

impl Lesson<'_, '_> {
    fn site(mut self) -> Result<Site, Reason> {
        let skeleton = self.skeleton;
        let (operand, locations) = self.best(&skeleton.locations, "locations", Self::locations)?;
        let (value, (levels, channels)) =
            self.best(&skeleton.values, "values", |lesson, sizes, name| {
                lesson.value(sizes, name, &locations)
            })?;
        let (weights, sums) = self.best(&skeleton.weights, "weights", |lesson, sizes, name| {
            lesson.weights(sizes, name, &locations, channels)
        })?;
        let (output, is_output_split) = self.output(&sums, &locations, channels)?;
        let graph = &self.context.graph;
        let anchor = graph.producer(&output).ok_or("its output has no node")?;
        let mut nodes: Vec<String> =
            locations.order.iter().map(|&index| graph.node(index).label().to_owned()).collect();
        nodes.push(graph.node(skeleton.reduce).label().to_owned());
        let spelling = format!(
            "{} GridSample, locations of rank {}, weights of rank {}",
            locations.order.len(),
            operand.rank,
            weights.rank
        );
        let [batch, queries] = locations.dims.clone();
        let mut site = Site {
            form: Form::GridSample,
            spelling,
            anchor,
            name: graph.node(anchor).label().to_owned(),
            nodes,
            value,
            samples: Some([operand, weights]),
            levels: Levels::Known(levels),
            points: Some(locations.points),
            batch,
            queries,
            heads: Some(locations.heads),
            channels: Some(channels),
            output,
            is_output_split,
            evidence: None,
        };
        let max_error = crate::check::against_reference(self.context, &mut self.sizes, &site)?;
        site.evidence = Some(Evidence { max_error, sizes: self.sizes });
        Ok(site)
    }

    /// What the first of the candidates with the fewest steps teaches. If none is recognised, the reason of the last one.
    fn best<T>(
        &mut self,
        candidates: &[&str],
        what: &str,
        learn: impl Fn(&Self, &mut Sizes, &str) -> Result<(Operand, T), Reason>,
    ) -> Result<(Operand, T), Reason> {
        let mut found: Option<(Operand, T, Sizes)> = None;
        let mut reason = String::new();
        for name in candidates {
            let mut sizes = self.sizes.clone();
            match learn(self, &mut sizes, name) {
                Ok((one, rest)) => {
                    let steps = one.steps.len();
                    if found.as_ref().is_none_or(|(best, ..)| steps < best.steps.len()) {
                        found = Some((one, rest, sizes));
                    }
                    if steps == 0 {
                        break;
                    }
                }
                Err(why) => reason = why,
            }
        }
        let (operand, rest, sizes) =
            found.ok_or_else(|| format!("its {what} are not recognised: {reason}"))?;
        self.sizes = sizes;
        Ok((operand, rest))
    }

    /// The shape of a candidate, with numbers for images and queries where these are open, and for one other size.
    fn shape(
        &self,
        sizes: &mut Sizes,
        name: &str,
        other: Option<usize>,
    ) -> Result<Vec<usize>, Reason> {
        let unknown = || format!("the shape of `{name}` is not known");
        let dims = self.context.facts.shape(name).ok_or_else(unknown)?;
        if let Some(dim) = dims.first() {
            sizes.set(dim, self.batch);
        }
        match (other, dims.get(1)) {
            (None, Some(dim)) => sizes.set(dim, self.queries),
            (Some(other), _) => {
                let open: Vec<&Dim> = dims.iter().filter(|dim| sizes.size(dim).is_none()).collect();
                if let [dim] = open[..] {
                    sizes.set(dim, other);
                }
            }
            _ => {}
        }
        let shape = sizes.shape(dims).ok_or_else(unknown)?;
        let is_small = elements(&shape).is_some_and(|count| count <= self.context.most_elements);
        if is_small { Ok(shape) } else { Err(format!("`{name}` is too large to be followed")) }
    }

    fn locations(&self, sizes: &mut Sizes, name: &str) -> Result<(Operand, Locations), Reason> {
        let shape = self.shape(sizes, name, None)?;
        let samplers = &self.skeleton.samplers;
        let grids: Vec<&str> =
            samplers.iter().map(|&at| self.context.graph.node(at).input(1).unwrap_or("")).collect();
        let mut run = |of: &dyn Fn(usize) -> f64| {
            let array = Array::filled(&shape, of).ok_or("too large")?;
            self.context.run(sizes, vec![(name, array)], &grids)
        };
        let (shifts, sums, places) = (run(&|_| 0.0)?, run(&|_| 1.0)?, run(&|at| at as f64)?);
        let shift = *shifts.iter().find_map(|grid| grid.data.first()).ok_or("there are none")?;
        let factor =
            *sums.iter().find_map(|grid| grid.data.first()).ok_or("there are none")? - shift;
        let is_even = |grids: &[Array<f64>], number: f64| {
            grids.iter().flat_map(|grid| &grid.data).all(|&x| (x - number).abs() < 1e-6)
        };
        if factor == 0.0 || !is_even(&shifts, shift) || !is_even(&sums, factor + shift) {
            return Err("they are not scaled evenly".into());
        }
        let mut levels = Vec::new();
        let mut heads = 0;
        for (grid, &sampler) in places.iter().zip(samplers) {
            let &[folded, queries, points, 2] = &grid.shape[..] else {
                return Err("a grid does not have four axes".into());
            };
            if folded % self.batch.max(1) != 0 || queries != self.queries {
                return Err(format!("a grid has the shape {:?}", grid.shape));
            }
            heads = folded / self.batch.max(1);
            let marks: Vec<Mark> =
                grid.data.iter().map(|x| ((x - shift) / factor).round() as Mark).collect();
            let map = affine(&marks, &[self.batch, heads, queries, points, 2]);
            levels.push((map.ok_or("their order has gaps")?, points, sampler));
        }
        levels.sort_by_key(|(map, ..)| map.offset);
        // The step between samples, and that between levels where each has one.
        let steps =
            levels.iter().filter(|(_, points, _)| *points > 1).map(|(map, ..)| map.steps[3]);
        let between = levels.windows(2).map(|pair| pair[1].0.offset - pair[0].0.offset);
        let step = steps.chain(between).next().unwrap_or(2);
        let mut next = 0;
        let first = &levels.first().ok_or("there are none")?.0.steps;
        for (map, points, _) in &levels {
            let agrees = map.offset == next
                && map.steps[..3] == first[..3]
                && map.steps[4] == 1
                && (*points < 2 || map.steps[3] == step);
            if !agrees {
                return Err("the levels do not follow each other in one axis".into());
            }
            next += step * i64::try_from(*points).map_err(|_| "too many points")?;
        }
        let points: Vec<usize> = levels.iter().map(|(_, points, _)| *points).collect();
        let axes = [
            Axis { size: self.batch, step: first[0] },
            Axis { size: self.queries, step: first[2] },
            Axis { size: heads, step: first[1] },
            Axis { size: points.iter().sum(), step },
            Axis { size: 2, step: 1 },
        ];
        let mut steps =
            steps_to(&axes, &shape, None).ok_or("their axes are not those of the operator")?;
        let transposed = !steps.is_empty();
        let (factor, shift) = (factor / 2.0, f64::midpoint(shift, 1.0));
        if factor != 1.0 || shift != 0.0 {
            steps.push(Adaptation::Scale { factor, shift });
        }
        let dims = self.context.facts.shape(name);
        let dim = |at: usize| dims.filter(|_| !transposed).and_then(|dims| dims.get(at)).cloned();
        let operand = Operand { tensor: name.to_owned(), rank: shape.len(), steps };
        let order = levels.into_iter().map(|(.., sampler)| sampler).collect();
        Ok((operand, Locations { points, order, heads, dims: [dim(0), dim(1)] }))
    }

    /// The value with its levels and channels.
    fn value(
        &self,
        sizes: &mut Sizes,
        name: &str,
        locations: &Locations,
    ) -> Result<(Operand, (Vec<Level>, usize)), Reason> {
        let graph = &self.context.graph;
        let images: Vec<&str> =
            locations.order.iter().map(|&at| graph.node(at).input(0).unwrap_or("")).collect();
        let mut pixels = 0usize;
        for image in &images {
            let dims = self.context.facts.shape(image).filter(|dims| dims.len() == 4);
            let area = dims.and_then(|dims| dims[2].size()?.checked_mul(dims[3].size()?));
            let area =
                area.ok_or_else(|| format!("the size of the level `{image}` is no constant"))?;
            pixels = pixels.checked_add(area).ok_or("the levels are too large")?;
        }
        let shape = self.shape(sizes, name, Some(pixels))?;
        let array = Array::filled(&shape, |at| at as Mark).ok_or("too large")?;
        let marks = self.context.run(sizes, vec![(name, array)], &images)?;
        let heads = locations.heads;
        let mut maps = Vec::new();
        let mut all_channels = None;
        for image in &marks {
            let &[folded, channels, height, width] = &image.shape[..] else {
                return Err("a level does not have four axes".into());
            };
            if folded != self.batch * heads
                || all_channels.replace(channels).is_some_and(|c| c != channels)
            {
                return Err(format!("a level has the shape {:?}", image.shape));
            }
            let shape =
                [self.batch, heads, channels, height.checked_mul(width).ok_or("too large")?];
            let map = affine(&image.data, &shape).ok_or("their order has gaps")?;
            maps.push((map, height, width));
        }
        let channels = all_channels.ok_or("there are none")?;
        let first = &maps.first().ok_or("there are none")?.0.steps;
        let steps = maps.iter().filter(|(_, h, w)| h * w > 1).map(|(map, ..)| map.steps[3]);
        let between = maps.windows(2).map(|pair| (pair[1].0.offset - pair[0].0.offset).abs());
        let step = steps.chain(between).next().unwrap_or(1).max(1);
        let mut levels = Vec::new();
        for (map, height, width) in &maps {
            let agrees =
                map.steps[..3] == first[..3] && (height * width < 2 || map.steps[3] == step);
            let start = (map.offset % step == 0).then(|| size(map.offset / step)).flatten();
            let Some(start) = start.filter(|_| agrees) else {
                return Err("the levels are laid out differently".into());
            };
            levels.push(Level { height: *height, width: *width, start });
        }
        let rest = self.batch * heads * channels;
        let total: usize = shape.iter().product();
        if rest == 0 || !total.is_multiple_of(rest) {
            return Err("they hold more than the levels".into());
        }
        let axes = [
            Axis { size: self.batch, step: first[0] },
            Axis { size: total / rest, step },
            Axis { size: heads, step: first[1] },
            Axis { size: channels, step: first[2] },
        ];
        let steps =
            steps_to(&axes, &shape, Some(0)).ok_or("their axes are not those of the operator")?;
        Ok((Operand { tensor: name.to_owned(), rank: 4, steps }, (levels, channels)))
    }

    /// The weights, and the samples that each of the sums adds up.
    fn weights(
        &self,
        sizes: &mut Sizes,
        name: &str,
        locations: &Locations,
        channels: usize,
    ) -> Result<(Operand, Array<Mark>), Reason> {
        let shape = self.shape(sizes, name, None)?;
        let graph = &self.context.graph;
        let (batch, heads, queries) = (self.batch, locations.heads, self.queries);
        let total: usize = locations.points.iter().sum();
        let rows = elements(&[batch, heads, channels, queries]).unwrap_or(usize::MAX);
        if rows.checked_mul(total).is_none_or(|count| count > self.context.most_elements) {
            return Err("it is too large to be followed".into());
        }
        let place = |at: usize| Mark::try_from(at).unwrap_or(NOWHERE);
        let mut given = Vec::new();
        let mut before = 0;
        for (&sampler, &points) in locations.order.iter().zip(&locations.points) {
            // A mark says row (image, head, channel, query) and sample.
            let mark = |at: usize| (place(at / points * total + before + at % points), NOWHERE);
            let samples = Array::filled(&[batch * heads, channels, queries, points], mark);
            given.push((graph.node(sampler).output[0].as_str(), samples.ok_or("too large")?));
            before += points;
        }
        given.push((name, Array::filled(&shape, |at| (NOWHERE, place(at))).ok_or("too large")?));
        let reduce = graph.node(self.skeleton.reduce);
        let products = self.context.run(sizes, given, &[reduce.input(0).unwrap_or("")])?;
        let products = products.first().ok_or("there are none")?;
        let call = Call::new(&self.context.facts, sizes, reduce);
        let call = call.on([&products.shape[..]]);
        let axes = call.reduced_axes(products.shape.len());
        let axes = axes.ok_or("the axes of the sum are not known")?;
        let shape_of_sum = call.shapes().and_then(|dims| sizes.shape(dims.first()?));
        let (sorted, _) = products.with_last(&axes).ok_or("too large")?;
        if sorted.data.len() != rows * total || total == 0 {
            return Err("the sum is not that over levels and points".into());
        }
        let mut sums = Vec::with_capacity(rows);
        let mut table = vec![NOWHERE; batch * heads * queries * total];
        for row in sorted.data.chunks(total) {
            let sum = row[0].0 as usize / total;
            for &(sample, weight) in row {
                let (of, at) = (sample as usize / total, sample as usize % total);
                if of != sum || sample == NOWHERE || weight == NOWHERE {
                    return Err("the sum is not that over levels and points".into());
                }
                // Without the channel, which has no part in the weight.
                let pixel = of / (channels * queries) * queries + of % queries;
                let entry = &mut table[pixel * total + at];
                if *entry != NOWHERE && *entry != weight {
                    return Err("channels have weights of their own".into());
                }
                *entry = weight;
            }
            sums.push(place(sum));
        }
        let map = affine(&table, &[batch, heads, queries, total]).ok_or("their order has gaps")?;
        let axes = [
            Axis { size: batch, step: map.steps[0] },
            Axis { size: queries, step: map.steps[2] },
            Axis { size: heads, step: map.steps[1] },
            Axis { size: total, step: map.steps[3] },
        ];
        let steps = steps_to(&axes, &shape, None).filter(|_| map.offset == 0);
        let steps = steps.ok_or("their axes are not those of the operator")?;
        let operand = Operand { tensor: name.to_owned(), rank: shape.len(), steps };
        let shape = shape_of_sum.ok_or("the axes of the sum are not known")?;
        Ok((operand, Array { shape, data: sums }))
    }

    /// The last tensor that is the operator's output, and whether it has heads and channels apart.
    fn output(
        &self,
        sums: &Array<Mark>,
        locations: &Locations,
        channels: usize,
    ) -> Result<(String, bool), Reason> {
        let (batch, heads, queries) = (self.batch, locations.heads, self.queries);
        let start = self.skeleton.outputs[0];
        let mut found = None;
        for &name in &self.skeleton.outputs {
            let mut sizes = self.sizes.clone();
            let Ok(marks) = self.context.run(&mut sizes, vec![(start, sums.clone())], &[name])
            else {
                break;
            };
            let is_whole = marks[0].shape == [batch, queries, heads * channels];
            let is_split = marks[0].shape == [batch, queries, heads, channels];
            let is_in_order = marks[0].data.iter().enumerate().all(|(at, &mark)| {
                let (row, column) = (at / (heads * channels), at % (heads * channels));
                let folded = row / queries * heads * channels + column;
                mark as usize == folded * queries + row % queries
            });
            if (is_whole || is_split) && is_in_order {
                found = Some((name.to_owned(), is_split));
            }
        }
        found.ok_or_else(|| {
            "what follows the sum does not bring it into the order [N, Lq, M * D]".into()
        })
    }
}
