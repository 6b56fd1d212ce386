//! Test tensors: pixels written to memory by the definition of each layout, samples aimed at pixels.

use msdeform::reference::{self, Samples};
use msdeform::{Direction, Level, Problem, Role, ValueLayout};
use msdeform_lab::Random;
use proptest::prelude::*;

pub const NAN: f64 = f64::NAN;
pub const INF: f64 = f64::INFINITY;

/// Two rows of four pixels. Powers of two: a sum tells which pixels went into it.
pub const LEVEL: (usize, usize) = (2, 4);
#[rustfmt::skip]
pub const PIXELS: [f64; 8] = [
     1.0,  2.0,  4.0,   8.0,
    16.0, 32.0, 64.0, 128.0,
];

/// Row-major offset of `index` in a tensor of `shape`.
fn ravel<const RANK: usize>(shape: [usize; RANK], index: [usize; RANK]) -> usize {
    shape.iter().zip(index).fold(0, |offset, (size, i)| {
        assert!(i < *size, "{index:?} is outside of {shape:?}");
        offset * size + i
    })
}

/// Where one channel of one pixel lies in the value tensor.
pub fn value_offset(
    problem: &Problem,
    (n, m, l): (usize, usize, usize),
    (row, column): (usize, usize),
    channel: usize,
) -> usize {
    let Level { height, width, start } = problem.levels()[l];
    let (images, heads) = (problem.batch(), problem.heads());
    let (pixels, channels) = (problem.spatial(), problem.channels());
    let packed = start + ravel([height, width], [row, column]);
    match problem.layout() {
        ValueLayout::Interleaved => {
            ravel([images, pixels, heads, channels], [n, packed, m, channel])
        }
        ValueLayout::HeadMajor => ravel([images, heads, pixels, channels], [n, m, packed, channel]),
        ValueLayout::HeadMajorPadded => {
            let bordered = start + ravel([height + 2, width + 2], [row + 1, column + 1]);
            ravel([images, heads, pixels, channels], [n, m, bordered, channel])
        }
    }
}

/// The location whose pixel coordinate is `pixel`: `location * size - 0.5 = pixel`. Exact where
/// `size` is a power of two, which is why the tests by hand use such levels.
pub fn location(pixel: f64, size: usize) -> f64 {
    (pixel + 0.5) / size as f64
}

/// A call of either operator with every tensor in memory.
#[derive(Clone, Debug)]
pub struct Call {
    pub problem: Problem,
    pub value: Vec<f64>,
    /// Empty where locations are given.
    pub references: Vec<f64>,
    /// Or offsets.
    pub locations: Vec<f64>,
    /// Or logits.
    pub weights: Vec<f64>,
}

impl Call {
    /// All pixels from `pixel(n, m, l, row, column, channel)`; NaN in borders and gaps, which no
    /// sample may see; weights of one; every sample far outside.
    pub fn new(problem: Problem, pixel: impl Fn([usize; 6]) -> f64) -> Self {
        let mut value = vec![f64::NAN; problem.value_len()];
        for_each_pixel(&problem, |index, offset| value[offset] = pixel(index));
        Self {
            value,
            references: vec![0.5; problem.references_len()],
            locations: vec![-9.0; problem.locations_len()],
            weights: vec![1.0; problem.weights_len()],
            problem,
        }
    }

    /// Position of a sample in the weights.
    pub fn sample(&self, n: usize, q: usize, m: usize, s: usize) -> usize {
        ravel(self.problem.weights_shape(), [n, q, m, s])
    }

    /// Aims a sample at pixel coordinates `(x, y)` of its level.
    pub fn aim(&mut self, sample: usize, level: usize, (x, y): (f64, f64)) {
        let Level { height, width, .. } = self.problem.levels()[level];
        self.locations[2 * sample] = location(x, width);
        self.locations[2 * sample + 1] = location(y, height);
    }

    fn tensor(&self, role: Role) -> &[f64] {
        match role {
            Role::Value => &self.value,
            Role::References => &self.references,
            Role::Locations | Role::Offsets => &self.locations,
            _ => &self.weights,
        }
    }

    /// Where its samples lie, and their weights.
    pub fn samples(&self) -> Samples {
        reference::samples_of(&self.problem, |role| self.tensor(role))
    }

    pub fn forward(&self) -> Vec<f64> {
        let mut found =
            reference::compute(&self.problem, Direction::Forward, |role| self.tensor(role));
        found.remove(0).1
    }

    pub fn backward(&self, grad_output: &[f64]) -> Gradients {
        let tensor = |role| if role == Role::GradOutput { grad_output } else { self.tensor(role) };
        let mut grads = Gradients::default();
        for (role, numbers) in reference::compute(&self.problem, Direction::Backward, tensor) {
            match role {
                Role::GradValue => grads.value = numbers,
                Role::GradReferences => grads.references = numbers,
                Role::GradLocations | Role::GradOffsets => grads.locations = numbers,
                _ => grads.weights = numbers,
            }
        }
        grads
    }

    /// Compares a gradient with the slopes of `sum(output * grad_output)`, element by element of the tensor that `of` chooses.
    /// A slope is a central difference, of the step at the element.
    pub fn check_slopes(
        &self,
        grad_output: &[f64],
        grads: &[f64],
        of: impl Fn(&mut Self) -> &mut Vec<f64>,
        step: impl Fn(usize) -> f64,
        bound: impl Fn(f64) -> f64,
    ) {
        let mut moved = self.clone();
        assert_eq!(of(&mut moved).len(), grads.len());
        for index in compared(grads.len()) {
            let (start, step) = (of(&mut moved)[index], step(index));
            let mut at = |x| {
                of(&mut moved)[index] = x;
                moved.forward().iter().zip(grad_output).map(|(x, y)| x * y).sum::<f64>()
            };
            let (found, expected) =
                (grads[index], (at(start + step) - at(start - step)) / (2.0 * step));
            assert!(
                (found - expected).abs() <= bound(expected),
                "[{index}]: {found} for {expected}"
            );
            of(&mut moved)[index] = start;
        }
    }
}

/// The gradients of a call.
#[derive(Debug, Default)]
pub struct Gradients {
    pub value: Vec<f64>,
    pub references: Vec<f64>,
    pub locations: Vec<f64>,
    pub weights: Vec<f64>,
}

/// Visits `[n, m, l, row, column, channel]` and its offset in the value tensor.
pub fn for_each_pixel(problem: &Problem, mut visit: impl FnMut([usize; 6], usize)) {
    for n in 0..problem.batch() {
        for m in 0..problem.heads() {
            for (l, level) in problem.levels().iter().enumerate() {
                for row in 0..level.height {
                    for column in 0..level.width {
                        for c in 0..problem.channels() {
                            let offset = value_offset(problem, (n, m, l), (row, column), c);
                            visit([n, m, l, row, column, c], offset);
                        }
                    }
                }
            }
        }
    }
}

/// Of so many elements those whose slope is compared, each of which takes two calls: all, and some under Miri.
fn compared(elements: usize) -> impl Iterator<Item = usize> {
    (0..elements).step_by(if cfg!(miri) { elements.div_ceil(3).max(1) } else { 1 })
}

/// One channel, one head, one query, one sample: the whole call in six numbers.
pub fn one_sample(
    (height, width): (usize, usize),
    values: &[f64],
    (x, y): (f64, f64),
    weight: f64,
) -> Call {
    let problem = Problem::builder()
        .queries(1)
        .levels([(height as i64, width as i64)])
        .build()
        .expect("a single level is a valid problem");
    let locations = vec![location(x, width), location(y, height)];
    let (value, references) = (values.to_vec(), Vec::new());
    Call { problem, value, references, locations, weights: vec![weight] }
}

/// Random small problems over every layout, with gaps between levels, levels in any order in
/// memory and differing points per level; samples inside, across every border and outside.
pub fn random_call() -> impl Strategy<Value = Call> {
    // Miri, thousands of times slower, gets smaller ones of every kind.
    let (largest, most_points, most_heads, most_channels) =
        if cfg!(miri) { (3, 2, 2, 2) } else { (6, 4, 3, 4) };
    let level = (1..=largest - 1i64, 1..=largest, 0usize..=3, 0usize..=most_points);
    let sizes = (0usize..=2, 1usize..=most_heads, 1usize..=most_channels, 0usize..=3);
    let order = (proptest::sample::select(ValueLayout::ALL.to_vec()), any::<bool>(), any::<u64>());
    (proptest::collection::vec(level, 1..=3), sizes, order).prop_map(
        |(levels, (batch, heads, channels, queries), (layout, reversed, seed))| {
            let border = 2 * layout.border() as i64;
            let mut starts = vec![0; levels.len()];
            let mut next = 0;
            let mut place = |index: usize| {
                let (height, width, gap, _) = levels[index];
                starts[index] = next + gap as i64;
                next = starts[index] + (height + border) * (width + border);
            };
            if reversed {
                (0..levels.len()).rev().for_each(&mut place);
            } else {
                (0..levels.len()).for_each(&mut place);
            }
            let problem = Problem::builder()
                .batch(batch)
                .heads(heads)
                .channels(channels)
                .queries(queries)
                .levels(levels.iter().map(|&(height, width, ..)| (height, width)))
                .level_starts(starts)
                .spatial(next as usize + 2)
                .points_per_level(levels.iter().map(|level| level.3).collect::<Vec<_>>())
                .layout(layout)
                .build()
                .expect("the levels were placed one after the other");
            random_tensors(problem, seed)
        },
    )
}

fn random_tensors(problem: Problem, seed: u64) -> Call {
    let mut random = Random::new(seed);
    let mut call = Call::new(problem, |_| 0.0);
    let problem = call.problem.clone();
    for_each_pixel(&problem, |_, offset| call.value[offset] = random.between(-2.0, 2.0));
    call.weights = numbers(&mut random, call.weights.len(), -1.0, 1.0);
    for row in 0..problem.batch() * problem.queries() * problem.heads() {
        for (l, level) in problem.levels().iter().enumerate() {
            for s in problem.level_samples(l) {
                let x = between_cell_borders(&mut random, level.width);
                let y = between_cell_borders(&mut random, level.height);
                call.aim(row * problem.samples() + s, l, (x, y));
            }
        }
    }
    call
}

pub fn numbers(random: &mut Random, count: usize, low: f64, high: f64) -> Vec<f64> {
    (0..count).map(|_| random.between(low, high)).collect()
}

/// A pixel coordinate from two outside on one side to two outside on the other, at least a
/// fiftieth of a pixel away from every integer: the operator is smooth there.
fn between_cell_borders(random: &mut Random, size: usize) -> f64 {
    random.between(-2.0, size as f64 + 2.0).floor() + random.between(0.02, 0.98)
}
