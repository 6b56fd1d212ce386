//! Tensors of a backward call, on the host and on the device, and the gradients they should give.

use libtest_mimic::Failed;
use msdeform::{Element, Problem, Role, reference};
use msdeform_cuda::{Argument, DeviceBuffer, OutputStrides, Plan, Pointers, Stream};

use crate::cases::{Random, Tensors, compare};
use crate::{Outcome, ensure};

/// The inputs of a backward call, and what it should give.
pub struct BackwardCase<V, S> {
    pub problem: Problem,
    pub inputs: Tensors<V, S>,
    pub grad_output: Vec<V>,
    pub strides: OutputStrides,
    pub expected: reference::Gradients,
}

/// What came back from the device.
pub struct Found<V, S> {
    pub value: Vec<V>,
    pub locations: Vec<S>,
    pub weights: Vec<S>,
}

impl<V: Element, S: Element> BackwardCase<V, S> {
    /// Seeded inputs as [`Tensors::new`] and a gradient of the output around zero.
    pub fn new(problem: &Problem, seed: u64) -> Self {
        Self::with_strides(problem, seed, OutputStrides::packed(problem))
    }

    /// The same with a gradient of the output that has other strides; NaN where nobody looks.
    pub fn with_strides(problem: &Problem, seed: u64, strides: OutputStrides) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let mut grad_output = vec![V::from_f32(f32::NAN); strides.extent(problem)];
        for_each_output(problem, strides, |at| {
            if grad_output[at].to_f64().is_nan() {
                grad_output[at] = V::from_f32(random.between(-1.0, 1.0));
            }
        });
        let mut case = Self {
            problem: problem.clone(),
            inputs: Tensors::new(problem, seed),
            grad_output,
            strides,
            expected: reference::Gradients::default(),
        };
        case.expect();
        case
    }

    /// Computes the expected gradients again, after a change of the inputs.
    pub fn expect(&mut self) {
        let wide = |x: &[S]| x.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        let value: Vec<f64> = self.inputs.value.iter().map(|x| x.to_f64()).collect();
        let (locations, weights) = (wide(&self.inputs.locations), wide(&self.inputs.weights));
        let mut upstream = Vec::new();
        for_each_output(&self.problem, self.strides, |at| {
            upstream.push(self.grad_output[at].to_f64());
        });
        self.expected = reference::backward(&self.problem, &value, &locations, &weights, &upstream);
    }

    /// Fails unless all three gradients are within the contract, with a NaN exactly where the reference
    /// has one.
    pub fn check(&self, found: &Found<V, S>) -> Outcome {
        let value = compare_with_nan(&found.value, &self.expected.value, |_| true);
        value.map_err(|error| format!("grad_value: {error:?}"))?;
        let same_cell = same_cell(&self.problem, &self.inputs.locations);
        let locations = compare_with_nan(&found.locations, &self.expected.locations, |index| {
            same_cell[index / 2]
        });
        locations.map_err(|error| format!("grad_locations: {error:?}"))?;
        let weights = compare_with_nan(&found.weights, &self.expected.weights, |_| true);
        Ok(weights.map_err(|error| format!("grad_weights: {error:?}"))?)
    }

    /// Everything on the device; gradients poisoned.
    pub fn upload(&self, stream: &Stream) -> Result<Resident<V, S>, Failed> {
        Ok(Resident {
            value: DeviceBuffer::from_host(stream, &self.inputs.value)?,
            locations: DeviceBuffer::from_host(stream, &self.inputs.locations)?,
            weights: DeviceBuffer::from_host(stream, &self.inputs.weights)?,
            grad_output: DeviceBuffer::from_host(stream, &self.grad_output)?,
            grad_value: DeviceBuffer::filled(stream, self.problem.value_len(), 0xff)?,
            grad_locations: DeviceBuffer::filled(stream, self.problem.locations_len(), 0xff)?,
            grad_weights: DeviceBuffer::filled(stream, self.problem.weights_len(), 0xff)?,
        })
    }
}

/// The seven tensors of a call on the device.
pub struct Resident<V, S> {
    pub value: DeviceBuffer<V>,
    pub locations: DeviceBuffer<S>,
    pub weights: DeviceBuffer<S>,
    pub grad_output: DeviceBuffer<V>,
    pub grad_value: DeviceBuffer<V>,
    pub grad_locations: DeviceBuffer<S>,
    pub grad_weights: DeviceBuffer<S>,
}

impl<V: Element, S: Element> Resident<V, S> {
    pub fn run(&mut self, stream: &Stream, plan: &Plan) -> msdeform_cuda::Result<()> {
        let arguments = [
            Argument::read(Role::Value, &self.value),
            Argument::read(Role::Locations, &self.locations),
            Argument::read(Role::Weights, &self.weights),
            Argument::read(Role::GradOutput, &self.grad_output),
            Argument::write(Role::GradValue, &mut self.grad_value),
            Argument::write(Role::GradLocations, &mut self.grad_locations),
            Argument::write(Role::GradWeights, &mut self.grad_weights),
        ];
        plan.run(stream, arguments)
    }

    /// The pointers, with a workspace of the caller if there is one.
    pub fn pointers(&self, workspace: u64) -> Pointers {
        Pointers::from([
            (Role::Value, self.value.address()),
            (Role::Locations, self.locations.address()),
            (Role::Weights, self.weights.address()),
            (Role::GradOutput, self.grad_output.address()),
            (Role::GradValue, self.grad_value.address()),
            (Role::GradLocations, self.grad_locations.address()),
            (Role::GradWeights, self.grad_weights.address()),
        ])
        .with_workspace(workspace)
    }

    pub fn poison(&mut self, stream: &Stream) -> msdeform_cuda::Result<()> {
        self.grad_value.fill(stream, 0xff)?;
        self.grad_locations.fill(stream, 0xff)?;
        self.grad_weights.fill(stream, 0xff)
    }

    pub fn download(&self, stream: &Stream) -> msdeform_cuda::Result<Found<V, S>> {
        Ok(Found {
            value: self.grad_value.to_host(stream)?,
            locations: self.grad_locations.to_host(stream)?,
            weights: self.grad_weights.to_host(stream)?,
        })
    }
}

impl<V: Element, S: Element> Found<V, S> {
    /// Every bit, through `f64`, which holds each of the formats; NaN is one number here.
    pub fn bits(&self) -> Vec<u64> {
        let of = |x: f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
        let values = self.value.iter().map(|x| of(x.to_f64()));
        let samples = self.locations.iter().chain(&self.weights).map(|x| of(x.to_f64()));
        values.chain(samples).collect()
    }
}

fn for_each_output(problem: &Problem, strides: OutputStrides, mut visit: impl FnMut(usize)) {
    for n in 0..problem.batch() as i64 {
        for q in 0..problem.queries() as i64 {
            for m in 0..problem.heads() as i64 {
                for c in 0..problem.channels() as i64 {
                    let OutputStrides { batch, query, head, channel } = strides;
                    visit((n * batch + q * query + m * head + c * channel) as usize);
                }
            }
        }
    }
}

/// Whether a sample falls into the same cell in `f32` and in `f64`: location gradients jump between
/// cells.
fn same_cell<S: Element>(problem: &Problem, locations: &[S]) -> Vec<bool> {
    const DISTANCE: f64 = 0.01;
    let mut sizes = Vec::new();
    for (index, level) in problem.levels().iter().enumerate() {
        sizes.extend(problem.level_samples(index).map(|_| [level.width, level.height]));
    }
    let agrees = |location: f64, size: usize| {
        let pixel = location * size as f64 - 0.5;
        let is_exact = f64::from(pixel as f32) == pixel;
        is_exact || !pixel.is_finite() || (pixel - pixel.round()).abs() > DISTANCE
    };
    let of_sample = |(index, at): (usize, &[S])| {
        let [width, height] = sizes[index % sizes.len()];
        agrees(at[0].to_f64(), width) && agrees(at[1].to_f64(), height)
    };
    locations.chunks_exact(2).enumerate().map(of_sample).collect()
}

fn compare_with_nan<T: Element>(
    found: &[T],
    expected: &[f64],
    is_compared: impl Fn(usize) -> bool,
) -> Outcome {
    ensure!(found.len() == expected.len(), "{} of {}", found.len(), expected.len());
    let (mut kept, mut wanted) = (Vec::new(), Vec::new());
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let both_nan = found.to_f64().is_nan() && expected.is_nan();
        if is_compared(index) && !both_nan {
            kept.push(found);
            wanted.push(expected);
        }
    }
    compare(&kept, &wanted)
}
