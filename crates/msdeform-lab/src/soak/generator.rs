//! Random cases of any size, dtype, memory order and number, the same for every backend.
//!
//! A model is what stays the same while training runs: dtypes, heads, channels, points, results.
//! Kernels are compiled for it. The sizes drawn for a model (images, queries, levels, memory, numbers) need no
//! other kernel, or should not, so that many problems share what takes longest.

use msdeform::{
    ATTENTION, DType, Direction, Error, Gradients, Mode, Offsets, Operator, Problem, Role,
    ValueLayout,
};

use crate::Random;
use crate::case::{
    Case, Numbers, Samples, SourceMemory, Starts, UpstreamMemory, ValueMemory, Values,
    VariantChoice, Weights,
};
use crate::runner::Rules;

#[derive(Clone, Debug)]
pub struct Bounds {
    pub dtypes: Vec<DType>,
    pub directions: Vec<Direction>,
    pub layouts: Vec<ValueLayout>,
    /// Multiply-adds of the reference, the largest that is drawn.
    pub work: u64,
    /// Queries of an image, the most that are drawn.
    pub queries: usize,
    /// Whether values and gradients of the output may have strides.
    pub strided: bool,
    /// Operators, each drawn equally often.
    pub operators: Vec<&'static Operator>,
    /// Whether outputs may have another format than the values.
    pub other_outputs: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            dtypes: DType::FAST.to_vec(),
            directions: Direction::ALL.to_vec(),
            layouts: ValueLayout::ALL.to_vec(),
            work: 1_500_000,
            queries: 6000,
            strided: true,
            operators: vec![&ATTENTION],
            other_outputs: true,
        }
    }
}

pub struct Generator<'a> {
    rules: &'a dyn Rules,
    bounds: Bounds,
    seed: u64,
}

/// What stays the same while sizes change.
struct Model {
    /// With as many levels as the model has, of one pixel each, and plain numbers.
    case: Case,
    /// Levels that are one pixel high or wide may need a kernel of their own: once in a few models.
    may_be_thin: bool,
    /// Seldom: levels or samples that do not exist.
    may_be_empty: bool,
}

impl<'a> Generator<'a> {
    pub fn new(rules: &'a dyn Rules, bounds: Bounds, seed: u64) -> Self {
        Self { rules, bounds, seed }
    }

    /// The cases of the model with this number: `sizes` of them, half by the backend's own choice, half by
    /// another that a tuning file could make, where there is one.
    pub fn cases(&self, number: u64, sizes: usize) -> Vec<Case> {
        let mut random = Random::of(self.seed, number);
        // All that is drawn fits together.
        let Ok(model) = self.model(number, &mut random) else { return Vec::new() };
        let mut choice = VariantChoice::Own;
        let mut cases = Vec::with_capacity(sizes);
        for index in 0..sizes {
            let mut case = self.case(&model, &mut random);
            if index == sizes / 2 {
                choice = self.rules.choose(&case, &mut random).unwrap_or_default();
            }
            case.choice = choice.clone();
            cases.push(case);
        }
        cases
    }

    fn model(&self, number: u64, random: &mut Random) -> Result<Model, Error> {
        // In turns, so that every format and direction comes equally often.
        let formats = self.bounds.dtypes.len();
        let dtype = self.bounds.dtypes[number as usize % formats];
        let directions = &self.bounds.directions;
        let direction = directions[number as usize / formats % directions.len()];
        let half = dtype != DType::F32;
        let channels = match random.below(10) {
            0..4 => random.one_of(&[32, 32, 64, 16, 8, 4]),
            4..6 => 8 * random.within(1, 32),
            _ => random.within(1, 257),
        };
        let may_be_empty = random.once_in(30);
        let levels = match random.below(40) {
            0 => random.within(17, 20),
            1 if may_be_empty => 0,
            _ => random.within(1, 5),
        };
        let fewest = usize::from(!may_be_empty);
        let same = random.within(fewest, if levels > 5 { 2 } else { 9 });
        let points = match random.below(3) {
            0 if levels <= 5 => (0..levels).map(|_| random.within(0, 9)).collect(),
            _ => vec![same; levels],
        };
        let wants = match direction {
            Direction::Forward => None,
            Direction::Backward if random.once_in(2) => Some(Gradients::ALL),
            Direction::Backward => Some(random.one_of(&Gradients::subsets())),
        };
        let strided = self.bounds.strided;
        let value_memory = if strided && random.once_in(5) {
            ValueMemory {
                pixels: random.below(4),
                heads: random.below(3),
                channels: random.one_of(&[0, 0, 8, 1, 3]),
                one_image: random.once_in(6),
            }
        } else {
            ValueMemory::default()
        };
        let upstream_memory = if strided && wants.is_some() && random.once_in(3) {
            random.one_of(UpstreamMemory::ALL)
        } else {
            UpstreamMemory::Packed
        };
        let sampling = if half && random.once_in(3) { DType::F32 } else { dtype };
        // Seldom: on a GPU it keeps the fast variants from being chosen.
        let is_other = self.bounds.other_outputs && half && random.once_in(8);
        let output = if is_other { DType::F32 } else { dtype };
        let operator = match self.bounds.operators.as_slice() {
            [one] => *one,
            several => random.one_of(several),
        };
        let has_references = operator.inputs.contains(&Role::References);
        let rule = has_references
            .then(|| (rule(random), if random.once_in(2) { DType::F32 } else { sampling }));
        let source_memory =
            if has_references { random.one_of(SourceMemory::ALL) } else { SourceMemory::Packed };
        let wants = wants.map(|wanted| {
            let references = has_references && random.once_in(2);
            Gradients { references, ..wanted }
        });
        let layout = random.one_of(&self.bounds.layouts);
        let heads = random.one_of(&[1, 2, 3, 4, 5, 6, 8, 8, 8, 16]);
        let mut problem = Problem::builder()
            .queries(1)
            .heads(heads)
            .channels(channels)
            .levels(points.iter().map(|_| (1, 1)))
            .points_per_level(points)
            .layout(layout)
            .dtype(dtype)
            .sampling_dtype(sampling)
            .output_dtype(output);
        if let Some((rule, dtype)) = rule {
            problem = problem.offsets(rule).reference_dtype(dtype);
        }
        let mode = if wants.is_none() { Mode::Fast } else { random.one_of(&Mode::ALL) };
        let may_be_thin = random.once_in(2);
        let plain = Case::plain(problem.build()?, wants);
        let case = Case { mode, value_memory, upstream_memory, source_memory, ..plain };
        Ok(Model { case, may_be_thin, may_be_empty })
    }

    fn case(&self, model: &Model, random: &mut Random) -> Case {
        let mut sizes = Sizes::draw(model, &self.bounds, random);
        loop {
            // Levels cannot collide: they are placed one behind the other.
            if let Ok(problem) = sizes.problem(&model.case.problem, random) {
                let mut case = Case { problem, ..model.case.clone() };
                if case.work() <= self.bounds.work || !sizes.shrink() {
                    case.starts = starts(random);
                    case.numbers = numbers(case.direction(), random);
                    case.seed = random.bits() >> 32;
                    let known = random.once_in(8);
                    case.raster_width = if known { random.within(1, 40) as u32 } else { 0 };
                    return case;
                }
            } else if !sizes.shrink() {
                // The sizes of a pyramid of single pixels are always valid.
                sizes.levels.fill((1, 1));
                sizes.gaps = false;
            }
        }
    }
}

struct Sizes {
    batch: usize,
    queries: usize,
    /// The queries are the pixels.
    encoder: bool,
    levels: Vec<(usize, usize)>,
    /// Levels lie in any order, with unused pixels between them.
    gaps: bool,
    smallest: usize,
}

impl Sizes {
    fn draw(model: &Model, bounds: &Bounds, random: &mut Random) -> Self {
        let batch = match random.below(60) {
            0 if model.may_be_empty => 0,
            _ => random.one_of(&[1, 1, 1, 2, 2, 3, 5]),
        };
        let queries = match random.below(30) {
            0 if model.may_be_empty => 0,
            0..4 => random.one_of(&[1, 1, 2, 3, 7, 31, 101, 257]),
            _ => random.scaled(1, bounds.queries),
        };
        let smallest = if model.may_be_thin { 1 } else { 2 };
        let largest = random.one_of(&[8, 20, 48, 100]);
        let side = |random: &mut Random| match random.below(8) {
            0 => smallest,
            _ => random.scaled(smallest, largest),
        };
        let levels = model.case.problem.points().iter().map(|_| match random.below(12) {
            0 => (smallest, smallest),
            1 => (smallest, random.scaled(smallest, largest)),
            2 => (random.scaled(smallest, largest), smallest),
            _ => (side(random), side(random)),
        });
        let levels = levels.collect();
        let (encoder, gaps) = (random.once_in(6), random.once_in(4));
        Self { batch, queries, encoder, levels, gaps, smallest }
    }

    /// Halves what costs most; false if there is nothing left to halve.
    fn shrink(&mut self) -> bool {
        let pixels: usize = self.levels.iter().map(|(h, w)| h * w).sum();
        let largest = self.levels.iter_mut().max_by_key(|(h, w)| *h * *w);
        let smallest = self.smallest;
        match largest {
            Some(level) if (pixels >= self.queries || self.encoder) && level.0 * level.1 > 9 => {
                let side = if level.0 > level.1 { &mut level.0 } else { &mut level.1 };
                *side = (*side / 2).max(smallest);
                true
            }
            _ if self.queries > 1 && !self.encoder => {
                self.queries /= 2;
                true
            }
            _ if self.batch > 1 => {
                self.batch /= 2;
                true
            }
            _ => false,
        }
    }

    fn problem(&self, of_model: &Problem, random: &mut Random) -> Result<Problem, Error> {
        let pixels: usize = self.levels.iter().map(|(h, w)| h * w).sum();
        let builder = of_model
            .to_builder()
            .packed()
            .batch(self.batch)
            .queries(if self.encoder && pixels > 0 { pixels } else { self.queries })
            .levels(self.levels.iter().map(|&(h, w)| (h as i64, w as i64)));
        if !self.gaps {
            return builder.build();
        }
        let border = 2 * of_model.layout().border();
        let mut order: Vec<usize> = (0..self.levels.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        let mut starts = vec![0i64; order.len()];
        let mut end = random.below(5);
        for level in order {
            starts[level] = end as i64;
            let (height, width) = self.levels[level];
            end += (height + border) * (width + border) + random.below(7);
        }
        builder.level_starts(starts).spatial(end).build()
    }
}

/// The rules of the models that exist, and what else the formula allows.
fn rule(random: &mut Random) -> Offsets {
    let mut rule = if random.once_in(2) { Offsets::from_points() } else { Offsets::from_boxes() };
    rule = match random.below(4) {
        0 => rule.one_for_all_levels(),
        1 => rule.anchors(random.within(1, 5)),
        _ => rule,
    };
    rule = rule.offset_scale(random.one_of(&[0.5, 0.5, 0.25, 2.0]));
    rule = if random.once_in(4) { rule.raw_weights() } else { rule };
    if random.once_in(6) { rule.nearest() } else { rule }
}

fn starts(random: &mut Random) -> Starts {
    if random.once_in(2) {
        return Starts::default();
    }
    // Whole vectors as often as anything else.
    let whole = random.once_in(2);
    let mut start = || if whole { 8 * random.below(3) } else { random.below(9) };
    std::array::from_fn(|_| start())
}

fn numbers(direction: Direction, random: &mut Random) -> Numbers {
    let samples = match random.below(5) {
        0 | 1 => Samples::Mixed,
        2 => Samples::Local,
        _ => random.one_of(Samples::ALL),
    };
    let mut values = || match random.below(3) {
        0 => random.one_of(Values::ALL),
        _ => Values::Unit,
    };
    let (values, upstream) = (values(), values());
    let upstream = if direction == Direction::Forward { Values::Unit } else { upstream };
    let weights = if random.once_in(3) { random.one_of(Weights::ALL) } else { Weights::Softmax };
    Numbers { samples, values, weights, upstream }
}
