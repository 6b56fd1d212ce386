//! Finds the attention in standard operators, however an exporter has spelled it.
//!
//! No template is compared. What stands around the samplers of a sum is run on marks instead of numbers, from
//! candidates for value, locations and weights: where each element ends up says how the candidate is laid out, and whether
//! the whole is the attention at all. Sizes that a model leaves open get two different sets of numbers, one after the other.

mod locations;

use crate::array::{Array, Mark, NOWHERE, elements};
use crate::dim::{Dim, Sizes};
use crate::evaluate::{Context, Reason};
use crate::form::Form;
use crate::layout::{Axis, affine, steps_to};
use crate::operators::Call;
use crate::sampler::{Places, Sampler, sizes_of};
use crate::site::{Evidence, Level, Levels, Operand, Site};
use crate::skeleton::{Skeleton, skeleton};
use locations::Locations;

/// Images, queries, and the sides of the first level for a run, where these are open, and others for a second run.
const TRIALS: [[usize; 3]; 2] = [[2, 3, 3], [3, 5, 4]];
/// Products of samples and channels from which on a site of fixed sizes is run with fewer queries.
const MANY: usize = 1 << 19;
/// Queries that are then left, where the model has more than four times as many.
const FEW_QUERIES: usize = 7;

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

/// What one set of numbers for the open sizes teaches.
#[derive(Clone, Debug)]
struct Lesson<'c, 'a> {
    context: &'c Context<'a>,
    skeleton: &'c Skeleton<'a>,
    sizes: Sizes,
    batch: usize,
    queries: usize,
    /// Whether the model leaves sizes of levels open.
    has_open_levels: bool,
}

/// A site, and whether sizes of it are open.
fn learn(
    context: &Context<'_>,
    skeleton: &Skeleton<'_>,
    [trial_batch, trial_queries, side]: [usize; 3],
) -> Result<(Site, bool), Reason> {
    let mut sizes = Sizes::default();
    // Of several tensors of such a rank the farthest: nearer ones may have their axes in another order.
    let farthest = |names: &[&str], ranks: std::ops::RangeInclusive<usize>, at: usize| {
        let mut shapes = names.iter().rev().filter_map(|name| context.facts.shape(name));
        shapes.find(|dims| ranks.contains(&dims.len())).map(|dims| dims[at].clone())
    };
    let batches = [
        farthest(&skeleton.values, 4..=4, 0),
        farthest(&skeleton.locations, 5..=6, 0),
        farthest(&skeleton.weights, 4..=5, 0),
    ];
    let known_batch = batches.iter().flatten().find_map(Dim::size);
    let batch = known_batch.unwrap_or(trial_batch);
    batches.iter().flatten().for_each(|dim| sizes.set(dim, batch));
    let mut has_open_levels = false;
    let mut pixels = Some(0usize);
    for (level, sampler) in skeleton.samplers.iter().enumerate() {
        let dims = context.facts.shape(sampler.image).filter(|dims| dims.len() > 2);
        let Some(dims) = dims.map(|dims| &dims[2..]) else {
            pixels = None;
            continue;
        };
        has_open_levels |= dims.iter().any(|dim| dim.known().is_none());
        // Sides of levels differ from each other and from level to level.
        let sides = [side + level, side + 2 + 2 * level].map(|side| side as i64);
        dims.iter()
            .enumerate()
            .for_each(|(at, dim)| sizes.set_symbols(dim, &[sides[at % 2], sides[1 - at % 2]]));
        let area = sizes.shape(&dims.to_vec()).and_then(|shape| elements(&shape));
        pixels = pixels.zip(area).and_then(|(sum, area)| sum.checked_add(area));
    }
    for name in &skeleton.values {
        let dims = context.facts.shape(name).filter(|dims| dims.len() > 2);
        let open = dims.into_iter().flatten().filter(|dim| sizes.size(dim).is_none());
        if let ([dim], Some(pixels)) = (&open.collect::<Vec<_>>()[..], pixels) {
            sizes.set(dim, pixels);
        }
    }
    let grids = skeleton.samplers.iter().filter_map(|sampler| match sampler.places {
        Places::Grid(grid) => Some(grid),
        Places::Pixels(_) => None,
    });
    let grids: Vec<&str> = grids.collect();
    let queries = [
        farthest(&skeleton.locations, 5..=6, 1),
        farthest(&skeleton.weights, 4..=5, 1),
        farthest(&grids, 4..=4, 1),
    ];
    let known = queries.iter().flatten().find_map(Dim::size);
    let told = known.or_else(|| queries.iter().flatten().find_map(|dim| sizes.size(dim)));
    let lesson = Lesson {
        context,
        skeleton,
        batch,
        queries: told.unwrap_or(trial_queries),
        sizes,
        has_open_levels,
    };
    let is_open = known_batch.is_none() || known.is_none() || has_open_levels;
    // With fewer queries first: sizes that follow from their number follow from another one as well.
    if let Some(site) = lesson.with_few_queries().and_then(|lesson| lesson.site().ok()) {
        return Ok((site, is_open));
    }
    Ok((lesson.site()?, is_open))
}

fn size(number: i64) -> Option<usize> {
    usize::try_from(number).ok()
}

fn form_of(samplers: &[Sampler<'_>]) -> Form {
    let is_gathered = samplers.iter().any(|sampler| matches!(sampler.places, Places::Pixels(_)));
    if is_gathered { Form::Gather } else { Form::GridSample }
}

impl<'a> Lesson<'_, 'a> {
    /// The same for a model of many queries as if it had few.
    fn with_few_queries(&self) -> Option<Self> {
        let shape =
            |name: &&str| self.context.facts.shape(name).and_then(|dims| self.sizes.shape(dims));
        let samples = self.skeleton.weights.iter().find_map(shape)?;
        let value = self.skeleton.values.iter().find_map(shape)?;
        let channels = value.last().copied().unwrap_or(1).min(256);
        let is_large = elements(&samples)?.checked_mul(channels)? > MANY;
        (is_large && self.queries > 4 * FEW_QUERIES).then(|| {
            let mut lesson = self.clone();
            lesson.sizes.reduce(self.queries, FEW_QUERIES);
            lesson.queries = FEW_QUERIES;
            lesson
        })
    }

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
        let (output, order) = self.output(&sums, &locations, channels, &value.tensor)?;
        let graph = &self.context.graph;
        let anchor = graph.producer(&output).ok_or("its output has no node")?;
        let mut nodes: Vec<String> = locations
            .order
            .iter()
            .flat_map(|sampler| &sampler.nodes)
            .map(|&index| graph.node(index).label().to_owned())
            .collect();
        nodes.push(graph.node(skeleton.reduce).label().to_owned());
        let has_gathers =
            matches!(locations.order.first(), Some(Sampler { places: Places::Pixels(_), .. }));
        let spelling = format!(
            "{} {}, locations of rank {}, weights of rank {}",
            locations.order.len(),
            if has_gathers { "times four gathers" } else { "GridSample" },
            operand.rank,
            weights.rank
        );
        let images: Vec<&str> = locations.order.iter().map(|sampler| sampler.image).collect();
        let [batch, queries] = locations.dims.clone();
        let mut site = Site {
            form: form_of(&locations.order),
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
            is_output_split: order == Order::Split,
            is_output_transposed: order == Order::Transposed,
            evidence: None,
        };
        let max_error =
            crate::check::against_reference(self.context, &mut self.sizes, &site, &images)?;
        let Levels::Known(levels) = &site.levels else {
            return Err("its levels are not known".into());
        };
        site.evidence =
            Some(Evidence { max_error, sizes: self.sizes.clone(), levels: levels.clone() });
        if self.has_open_levels {
            site.levels = self.computed_levels(&locations.order, &site.levels)?;
        }
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

    fn value(
        &self,
        sizes: &mut Sizes,
        name: &str,
        locations: &Locations<'_>,
    ) -> Result<(Operand, (Vec<Level>, usize)), Reason> {
        let images: Vec<&str> = locations.order.iter().map(|sampler| sampler.image).collect();
        let mut pixels = 0usize;
        for (image, sides) in images.iter().zip(&locations.sides) {
            let dims = self.context.facts.shape(image).filter(|dims| dims.len() == 4);
            let of_shape = || Some([sizes.size(&dims?[2])?, sizes.size(&dims?[3])?]);
            let sides =
                sides.or_else(of_shape).and_then(|[height, width]| height.checked_mul(width));
            let area =
                sides.ok_or_else(|| format!("the size of the level `{image}` is not known"))?;
            pixels = pixels.checked_add(area).ok_or("the levels are too large")?;
        }
        // Levels keep their sizes, also where the queries are as many as their pixels and are left out.
        let mut full = sizes.in_full();
        let shape = self.shape(&mut full, name, Some(pixels))?;
        let array = Array::filled(&shape, |at| at as Mark).ok_or("too large")?;
        let marks = self.context.run(&mut full, vec![(name, array)], &images)?;
        sizes.adopt(full);
        let heads = locations.heads;
        let mut maps = Vec::new();
        let mut all_channels = None;
        for (image, sides) in marks.iter().zip(&locations.sides) {
            let (folded, channels, height, width) = match (&image.shape[..], sides) {
                (&[folded, channels, height, width], None) => (folded, channels, height, width),
                (shape, &Some([height, width])) => {
                    let rows = self.batch * heads * height * width;
                    let is_folded = rows > 0 && image.data.len().is_multiple_of(rows);
                    let channels = if is_folded { image.data.len() / rows } else { 0 };
                    let is_last =
                        shape.last().is_some_and(|&last| last == width || last == height * width);
                    (if is_last { self.batch * heads } else { 0 }, channels, height, width)
                }
                _ => return Err("a level does not have four axes".into()),
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
        locations: &Locations<'_>,
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
        for ((sampler, &points), places) in
            locations.order.iter().zip(&locations.points).zip(&locations.places)
        {
            // A mark says row (image, head, channel, query) and sample.
            let mark = |at: usize| (place(at / points * total + before + at % points), NOWHERE);
            let mut samples = Array::filled(&[batch * heads, channels, queries, points], mark)
                .ok_or("too large")?;
            if let (Places::Pixels(_), Some(places)) = (&sampler.places, places) {
                let told = self.context.facts.shape(sampler.output);
                let told = told.and_then(|dims| sizes.shape(dims));
                samples.shape =
                    match told.filter(|shape| elements(shape) == Some(samples.data.len())) {
                        Some(shape) => shape,
                        None => self.shape_of_samples(sizes, sampler, places)?,
                    };
            }
            given.push((sampler.output, samples));
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

    /// Where the model computes the sizes of the levels, which follow each other without gaps.
    fn computed_levels(&self, order: &[Sampler<'_>], levels: &Levels) -> Result<Levels, Reason> {
        let Levels::Known(levels) = levels else { return Ok(levels.clone()) };
        let mut next = 0;
        let mut names = Vec::new();
        for (sampler, level) in order.iter().zip(levels) {
            let name =
                sizes_of(self.context, &self.sizes, sampler.image, [level.height, level.width]);
            names.push(name.filter(|_| level.start == next).ok_or_else(|| {
                format!("the size of the level `{}` is no constant, and no tensor of the model holds it", sampler.image)
            })?);
            next += level.height * level.width;
        }
        Ok(Levels::Computed(names))
    }

    /// The shape that a sampler's own nodes give the samples.
    fn shape_of_samples(
        &self,
        sizes: &mut Sizes,
        sampler: &Sampler<'_>,
        places: &[usize],
    ) -> Result<Vec<usize>, Reason> {
        let unknown = || format!("the shape of `{}` is not known", sampler.output);
        let image = self.context.facts.shape(sampler.image).and_then(|dims| sizes.shape(dims));
        let zeros = |shape: &[usize]| Array::filled(shape, |_| 0.0).ok_or("too large");
        let mut given = vec![(sampler.image, zeros(&image.ok_or_else(unknown)?)?)];
        for name in sampler.places.names() {
            given.push((name, zeros(places)?));
        }
        let samples = self.context.run(sizes, given, &[sampler.output])?;
        Ok(samples.into_iter().next().ok_or_else(unknown)?.shape)
    }

    /// The last tensor that is the operator's output, and how its axes lie. One that is transposed is taken where there is no other.
    fn output(
        &self,
        sums: &Array<Mark>,
        locations: &Locations<'_>,
        channels: usize,
        value: &str,
    ) -> Result<(String, Order), Reason> {
        let (batch, heads, queries) = (self.batch, locations.heads, self.queries);
        let start = self.skeleton.outputs[0];
        let (mut found, mut transposed) = (None, None);
        for &name in &self.skeleton.outputs {
            let facts = &self.context.facts;
            let is_other = facts.data_type(name) != facts.data_type(value);
            if is_other
                && facts.data_type(name).is_some()
                && (found.is_some() || transposed.is_some())
            {
                break;
            }
            let mut sizes = self.sizes.clone();
            let Ok(marks) = self.context.run(&mut sizes, vec![(start, sums.clone())], &[name])
            else {
                break;
            };
            let order = match marks[0].shape[..] {
                [n, q, width] if [n, q, width] == [batch, queries, heads * channels] => {
                    Order::Whole
                }
                [n, q, m, d] if [n, q, m, d] == [batch, queries, heads, channels] => Order::Split,
                _ => Order::Transposed,
            };
            let is_in_order = marks[0].data.iter().enumerate().all(|(at, &mark)| {
                let (row, column) = (at / (heads * channels), at % (heads * channels));
                let folded = row / queries * heads * channels + column;
                mark as usize == folded * queries + row % queries
            });
            let counts_up =
                || marks[0].data.iter().enumerate().all(|(at, &mark)| mark as usize == at);
            if order != Order::Transposed && is_in_order {
                found = Some((name.to_owned(), order));
            } else if marks[0].shape == [batch, heads * channels, queries] && counts_up() {
                transposed = Some((name.to_owned(), Order::Transposed));
            }
        }
        found.or(transposed).ok_or_else(|| {
            "what follows the sum does not bring it into the order [N, Lq, M * D]".into()
        })
    }
}

/// How the axes of an output lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// `[N, Lq, M * D]`
    Whole,
    /// `[N, Lq, M, D]`
    Split,
    /// `[N, M * D, Lq]`
    Transposed,
}
