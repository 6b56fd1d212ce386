//! Problems with awkward shapes, and tensors for them.

use msdeform::{DType, Element, Problem, ProblemBuilder, Role, ValueLayout, reference};
use msdeform_cuda::{Argument, DeviceBuffer, Plan, Pointers, Stream};

/// Levels with far more pixels than a few queries have samples.
pub const SPARSE: [(i64, i64); 3] = [(40, 30), (23, 50), (6, 10)];

/// Problems by name. Small: the f64 reference computes each of them.
pub fn problems() -> Vec<(&'static str, ProblemBuilder)> {
    let base = || Problem::builder().batch(2).heads(3).channels(16).queries(37);
    let pyramid = [(12, 20), (6, 10), (3, 5), (2, 3)];
    let ladder: Vec<(i64, i64)> = (1..=20).map(|size| (size, 21 - size)).collect();
    vec![
        ("ordinary", base().heads(8).channels(32).levels(pyramid).points(4)),
        ("encoder", base().heads(8).channels(32).queries(321).levels(pyramid).points(8)),
        ("d16", base().levels(pyramid).points(3)),
        ("d64", base().channels(64).levels(pyramid).points(4)),
        ("d40", base().channels(40).levels(pyramid).points(5)),
        ("odd_channels", base().channels(33).levels(pyramid).points(2)),
        ("one_channel", base().channels(1).levels(pyramid).points(2)),
        ("many_channels", base().channels(520).queries(5).levels(pyramid).points(2)),
        ("sparse", base().heads(8).channels(32).queries(11).levels(SPARSE).points(4)),
        ("one_of_everything", Problem::builder().queries(1).levels([(1, 1)]).points(1)),
        ("one_pixel_levels", base().levels([(1, 1), (1, 9), (9, 1)]).points(4)),
        ("points_per_level", base().levels(pyramid).points_per_level([5, 0, 1, 9])),
        ("many_points", base().queries(5).levels(pyramid).points(40)),
        ("twenty_levels", base().levels(ladder).points(2)),
        ("coarse_first", base().levels([(2, 3), (3, 5), (6, 10)]).points(4)),
        ("no_points", base().levels(pyramid).points(0)),
        ("no_levels", base().levels(Vec::<(i64, i64)>::new())),
        ("no_queries", base().queries(0).levels(pyramid).points(2)),
        ("no_batch", base().batch(0).levels(pyramid).points(2)),
    ]
}

/// Levels out of order with unused pixels between and behind them, which hold NaN in [`Tensors`].
pub fn with_gaps(layout: ValueLayout) -> Problem {
    let starts: [i64; 2] = [150, 7];
    Problem::builder()
        .batch(2)
        .heads(3)
        .channels(16)
        .queries(37)
        .points(4)
        .layout(layout)
        .levels([(4, 6), (8, 9)])
        .level_starts(starts)
        .spatial(230)
        .build()
        .unwrap()
}

/// Runs a forward plan on three tensors.
pub fn run_forward<V: Element, S: Element>(
    plan: &Plan,
    stream: &Stream,
    (value, locations, weights): (&DeviceBuffer<V>, &DeviceBuffer<S>, &DeviceBuffer<S>),
    output: &mut DeviceBuffer<V>,
) -> msdeform_cuda::Result<()> {
    let arguments = [
        Argument::read(Role::Value, value),
        Argument::read(Role::Locations, locations),
        Argument::read(Role::Weights, weights),
        Argument::write(Role::Output, output),
    ];
    plan.run(stream, arguments)
}

/// The pointers of a forward call.
pub fn forward_pointers([value, locations, weights, output]: [u64; 4]) -> Pointers {
    Pointers::from([
        (Role::Value, value),
        (Role::Locations, locations),
        (Role::Weights, weights),
        (Role::Output, output),
    ])
}

/// The inputs of a call, and what it should give.
pub struct Tensors<V, S> {
    pub value: Vec<V>,
    pub locations: Vec<S>,
    pub weights: Vec<S>,
    pub expected: Vec<f64>,
}

impl<V: Element, S: Element> Tensors<V, S> {
    /// Seeded inputs: values around zero, locations inside, on and outside of the borders, NaN and
    /// infinite ones, weights of both signs. Pixels that no level covers are NaN, borders are zero.
    pub fn new(problem: &Problem, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut value: Vec<V> =
            (0..problem.value_len()).map(|_| V::from_f32(random.between(-2.0, 2.0))).collect();
        overwrite_unused_pixels(problem, &mut value);
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1.0, -0.0, 1e30, 0.5];
        let locations = (0..problem.locations_len())
            .map(|_| match random.next() % 16 {
                0 => S::from_f32(special[(random.next() % 8) as usize]),
                _ => S::from_f32(random.between(-0.15, 1.15)),
            })
            .collect::<Vec<S>>();
        let weights: Vec<S> =
            (0..problem.weights_len()).map(|_| S::from_f32(random.between(-0.2, 1.0))).collect();
        let mut tensors = Self { value, locations, weights, expected: Vec::new() };
        tensors.expect(problem);
        tensors
    }

    /// Computes the expected output again, after a change of the inputs.
    pub fn expect(&mut self, problem: &Problem) {
        let wide = |x: &[S]| x.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        let value: Vec<f64> = self.value.iter().map(|x| x.to_f64()).collect();
        self.expected =
            reference::forward(problem, &value, &wide(&self.locations), &wide(&self.weights));
    }
}

/// NaN where no level is, zero in the border of a level.
fn overwrite_unused_pixels<V: Element>(problem: &Problem, value: &mut [V]) {
    let layout = problem.layout();
    let mut fill: Vec<Option<f32>> = vec![Some(f32::NAN); problem.spatial()];
    for level in problem.levels() {
        fill[level.start..][..level.footprint(layout)].fill(Some(0.0));
        for row in 0..level.height {
            let first = level.origin(layout) + row * level.row_pitch(layout);
            fill[first..][..level.width].fill(None);
        }
    }
    for batch in 0..problem.batch() {
        for head in 0..problem.heads() {
            for (pixel, fill) in fill.iter().enumerate() {
                if let Some(fill) = fill {
                    let first = problem.head_offset(batch, head) + pixel * problem.pixel_stride();
                    value[first..][..problem.channels()].fill(V::from_f32(*fill));
                }
            }
        }
    }
}

/// Relative L2 error; NaN if anything is.
pub fn relative_l2<T: Element>(found: &[T], expected: &[f64]) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    for (found, expected) in found.iter().zip(expected) {
        error += (found.to_f64() - expected).powi(2);
        norm += expected * expected;
    }
    if norm == 0.0 && error == 0.0 { 0.0 } else { (error / norm).sqrt() }
}

/// Fails unless every element is there and the error is within the contract of the format.
pub fn compare<T: Element>(found: &[T], expected: &[f64]) -> crate::Outcome {
    compare_within(found, expected, T::DTYPE.rel_l2_bound())
}

/// The same with a bound of its own.
pub fn compare_within<T: Element>(found: &[T], expected: &[f64], bound: f64) -> crate::Outcome {
    crate::ensure!(found.len() == expected.len(), "{} of {}", found.len(), expected.len());
    let error = relative_l2(found, expected);
    // Written so that NaN fails.
    let within = error <= bound;
    crate::ensure!(within, "relative L2 error {error:.3e} > {bound:.0e}");
    Ok(())
}

/// Runs a closure-like macro for the Rust types of a problem's formats.
macro_rules! for_formats {
    ($dtype:expr, $sampling:expr, $body:ident($($argument:expr),*)) => {
        match ($dtype, $sampling) {
            (DType::F32, _) => $body::<f32, f32>($($argument),*),
            (DType::F16, DType::F16) => $body::<half::f16, half::f16>($($argument),*),
            (DType::F16, _) => $body::<half::f16, f32>($($argument),*),
            (_, DType::Bf16) => $body::<half::bf16, half::bf16>($($argument),*),
            _ => $body::<half::bf16, f32>($($argument),*),
        }
    };
}
pub(crate) use for_formats;

/// Value and sampling formats that are tested.
pub const FORMATS: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
];

/// A generator that gives the same numbers everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}
