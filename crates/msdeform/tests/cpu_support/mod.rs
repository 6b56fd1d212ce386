//! Problems with data, and comparisons against the reference, for the CPU tests.

#![allow(dead_code, reason = "each test binary uses its own part")]

use half::{bf16, f16};
use msdeform::cpu::CpuPlan;
use msdeform::{
    DType, Element, Error, GradientsMut, Problem, TensorView, TensorViewMut, Typed, reference,
};

/// A small, fast, well mixed generator (SplitMix64): the same numbers on every machine.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A tensor in its storage format.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F64(Vec<f64>),
}

impl Tensor {
    pub fn new(dtype: DType, data: &[f64]) -> Self {
        fn typed<T: Typed>(data: &[f64]) -> Vec<T> {
            data.iter().map(|&x| T::from_f64(x)).collect()
        }
        match dtype {
            DType::F32 => Self::F32(typed(data)),
            DType::F16 => Self::F16(typed(data)),
            DType::Bf16 => Self::Bf16(typed(data)),
            DType::F64 => Self::F64(typed(data)),
        }
    }

    /// A tensor to be written: NaN everywhere, so that an element left out is noticed.
    pub fn poisoned(dtype: DType, len: usize) -> Self {
        Self::new(dtype, &vec![f64::NAN; len])
    }

    pub fn view(&self) -> TensorView<'_> {
        match self {
            Self::F32(data) => data.into(),
            Self::F16(data) => data.into(),
            Self::Bf16(data) => data.into(),
            Self::F64(data) => data.into(),
        }
    }

    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        match self {
            Self::F32(data) => data.into(),
            Self::F16(data) => data.into(),
            Self::Bf16(data) => data.into(),
            Self::F64(data) => data.into(),
        }
    }

    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Self::F32(data) => data.iter().map(|x| x.to_f64()).collect(),
            Self::F16(data) => data.iter().map(|x| x.to_f64()).collect(),
            Self::Bf16(data) => data.iter().map(|x| x.to_f64()).collect(),
            Self::F64(data) => data.clone(),
        }
    }

    /// The exact bits, to compare runs that must not differ at all.
    pub fn bits(&self) -> Vec<u64> {
        match self {
            Self::F32(data) => data.iter().map(|x| u64::from(x.to_bits())).collect(),
            Self::F16(data) => data.iter().map(|x| u64::from(x.to_bits())).collect(),
            Self::Bf16(data) => data.iter().map(|x| u64::from(x.to_bits())).collect(),
            Self::F64(data) => data.iter().map(|x| x.to_bits()).collect(),
        }
    }
}

/// A problem and the tensors of a call.
pub struct Case {
    pub problem: Problem,
    pub value: Tensor,
    pub locations: Tensor,
    pub weights: Tensor,
    pub grad_output: Tensor,
}

/// What a run produced.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    pub output: Tensor,
    pub grad_value: Tensor,
    pub grad_locations: Tensor,
    pub grad_weights: Tensor,
}

impl Case {
    /// Random values and weights; locations inside, on the outside, far away, NaN and infinite.
    /// Borders and gaps of the value tensor hold NaN: nothing may read them.
    pub fn random(problem: Problem, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut value = vec![f64::NAN; problem.value_len()];
        for_each_pixel(&problem, |offset| {
            for x in &mut value[offset..offset + problem.channels()] {
                *x = random.between(-1.0, 1.0);
            }
        });
        let mut locations = Vec::with_capacity(problem.locations_len());
        while locations.len() < problem.locations_len() {
            locations.push(match random.bits() % 64 {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2 => f64::NEG_INFINITY,
                3 => random.between(-1e6, 1e6),
                4..12 => random.between(-0.5, 1.5),
                _ => random.between(0.0, 1.0),
            });
        }
        let weights: Vec<f64> =
            (0..problem.weights_len()).map(|_| random.between(0.0, 1.0)).collect();
        let grad: Vec<f64> = (0..problem.output_len()).map(|_| random.between(-1.0, 1.0)).collect();
        Self {
            value: Tensor::new(problem.dtype(), &value),
            locations: Tensor::new(problem.sampling_dtype(), &locations),
            weights: Tensor::new(problem.sampling_dtype(), &weights),
            grad_output: Tensor::new(problem.dtype(), &grad),
            problem,
        }
    }

    /// Forward and backward on a plan, into poisoned tensors.
    pub fn run(&self, plan: &mut CpuPlan) -> Results {
        let problem = &self.problem;
        let mut results = Results {
            output: Tensor::poisoned(problem.dtype(), problem.output_len()),
            grad_value: Tensor::poisoned(problem.dtype(), problem.value_len()),
            grad_locations: Tensor::poisoned(problem.sampling_dtype(), problem.locations_len()),
            grad_weights: Tensor::poisoned(problem.sampling_dtype(), problem.weights_len()),
        };
        self.forward(plan, &mut results.output).unwrap();
        let gradients = GradientsMut::new()
            .value(results.grad_value.view_mut())
            .locations(results.grad_locations.view_mut())
            .weights(results.grad_weights.view_mut());
        self.backward(plan, gradients).unwrap();
        results
    }

    pub fn forward(&self, plan: &mut CpuPlan, output: &mut Tensor) -> Result<(), Error> {
        let (value, locations) = (self.value.view(), self.locations.view());
        plan.forward(value, locations, self.weights.view(), output.view_mut())
    }

    pub fn backward(&self, plan: &mut CpuPlan, gradients: GradientsMut<'_>) -> Result<(), Error> {
        let (value, locations) = (self.value.view(), self.locations.view());
        let (weights, grad_output) = (self.weights.view(), self.grad_output.view());
        plan.backward(value, locations, weights, grad_output, gradients)
    }

    /// Compares a run with the reference on the same stored inputs, within the contract.
    pub fn check(&self, results: &Results) -> Result<(), String> {
        let problem = &self.problem;
        let (value, locations) = (self.value.to_f64(), self.locations.to_f64());
        let (weights, grad) = (self.weights.to_f64(), self.grad_output.to_f64());
        let output = reference::forward(problem, &value, &locations, &weights);
        let grads = reference::backward(problem, &value, &locations, &weights, &grad);
        let (bound, sampling) =
            (problem.dtype().rel_l2_bound(), problem.sampling_dtype().rel_l2_bound());
        close("output", &results.output.to_f64(), &output, bound)?;
        close("grad_value", &results.grad_value.to_f64(), &grads.value, bound)?;
        close("grad_weights", &results.grad_weights.to_f64(), &grads.weights, sampling)?;
        // Location gradients jump where a sample crosses into another cell, and f32 coordinates
        // may fall on the other side: samples close to a cell's border are compared elsewhere.
        let away = self.away_from_borders(&locations);
        let keep = |data: &[f64]| -> Vec<f64> {
            data.iter().zip(&away).filter(|&(_, &away)| away).map(|(&x, _)| x).collect()
        };
        let found = results.grad_locations.to_f64();
        if let Some(index) = found.iter().position(|x| x.is_nan()) {
            return Err(format!("grad_locations: element {index} is NaN"));
        }
        close("grad_locations", &keep(&found), &keep(&grads.locations), sampling)
    }

    /// For every coordinate, whether its sample lies at least 0.01 pixel from any cell border.
    fn away_from_borders(&self, locations: &[f64]) -> Vec<bool> {
        let problem = &self.problem;
        let samples = problem.samples();
        let mut sizes = vec![(0.0, 0.0); samples];
        for (index, level) in problem.levels().iter().enumerate() {
            for sample in problem.level_samples(index) {
                sizes[sample] = (level.width as f64, level.height as f64);
            }
        }
        let mut away = Vec::with_capacity(locations.len());
        for (index, xy) in locations.chunks_exact(2).enumerate() {
            let (width, height) = sizes[index % samples];
            let distance = |pixel: f64| (pixel - pixel.round()).abs();
            let (x, y) = (xy[0] * width - 0.5, xy[1] * height - 0.5);
            // NaN and infinity are not near anything; their gradient is compared.
            let near = distance(x) < 0.01 || distance(y) < 0.01;
            away.extend([!near; 2]);
        }
        away
    }
}

/// Relative L2 error within a bound, written so that NaN fails.
pub fn close(name: &str, found: &[f64], wanted: &[f64], bound: f64) -> Result<(), String> {
    if found.len() != wanted.len() {
        return Err(format!("{name}: {} elements, wanted {}", found.len(), wanted.len()));
    }
    if let Some(index) = (0..found.len()).find(|&i| found[i].is_nan() != wanted[i].is_nan()) {
        return Err(format!("{name}[{index}] is {}, wanted {}", found[index], wanted[index]));
    }
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(wanted).map(|(&a, &b)| square(a - b)).sum();
    let norm: f64 = wanted.iter().map(|&b| square(b)).sum();
    let relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    if relative <= bound {
        Ok(())
    } else {
        Err(format!("{name}: relative L2 error {relative:.3e}, allowed {bound:.0e}"))
    }
}

/// Calls back with the offset of channel 0 of every pixel that belongs to a level.
fn for_each_pixel(problem: &Problem, mut visit: impl FnMut(usize)) {
    for n in 0..problem.batch() {
        for m in 0..problem.heads() {
            for level in problem.levels() {
                for line in 0..level.height {
                    for column in 0..level.width {
                        let pixel = level.origin(problem.layout())
                            + line * level.row_pitch(problem.layout())
                            + column;
                        visit(problem.head_offset(n, m) + pixel * problem.pixel_stride());
                    }
                }
            }
        }
    }
}
