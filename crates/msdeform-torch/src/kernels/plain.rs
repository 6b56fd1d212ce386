//! The operator with given locations and weights.

use msdeform::{Direction, Role};
use msdeform_cuda::Pointers;

use super::{Asked, check_gradient, gpu, gpu_without_kernels, gradients_of, threads};
use crate::boxed::Arguments;
use crate::call::{Described, Head, with_key};
use crate::cpu;
use crate::error::CallError;
use crate::levels::Given;
use crate::libtorch::Libtorch;
use crate::tensor::{List, Place, Tensor, check_dense, check_formats};

const NAMES: [&str; 3] = ["value", "sampling_locations", "attention_weights"];
const SAMPLING: &str = "[batch, queries, heads, levels, points, 2]";
const GRADIENTS: [Role; 3] = [Role::GradValue, Role::GradLocations, Role::GradWeights];
/// What each of them is in [`Head::gradients`].
const BITS: [i64; 3] = [1, 2, 4];

/// What both directions read.
pub struct Inputs {
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
}

impl Inputs {
    pub fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            value: arguments.tensor(),
            locations: arguments.tensor(),
            weights: arguments.tensor(),
        }
    }

    const fn tensors(&self) -> [&Tensor; 3] {
        [&self.value, &self.locations, &self.weights]
    }

    fn named(&self) -> [(&'static str, &Tensor); 3] {
        [(NAMES[0], &self.value), (NAMES[1], &self.locations), (NAMES[2], &self.weights)]
    }

    fn output_shape(&self) -> Result<[i64; 3], CallError> {
        let (value, locations) = (self.value.shape()?, self.locations.shape()?);
        let &[batch, _, heads, channels] = value else {
            let (found, expected) = (value.to_vec(), "[batch, pixels, heads, channels]".to_owned());
            return Err(CallError::Shape { tensor: NAMES[0], found, expected });
        };
        let &[_, queries, ..] = locations else {
            let (found, expected) = (locations.to_vec(), SAMPLING.to_owned());
            return Err(CallError::Shape { tensor: NAMES[1], found, expected });
        };
        Ok([batch, queries, heads.saturating_mul(channels)])
    }

    fn copied_to_host(&self) -> Result<Self, CallError> {
        Ok(Self {
            value: self.value.copied_to(Place::Cpu)?,
            locations: self.locations.copied_to(Place::Cpu)?,
            weights: self.weights.copied_to(Place::Cpu)?,
        })
    }

    /// As the kernels read them: on a GPU slices of larger values are read in place.
    fn prepared(self) -> Result<Self, CallError> {
        check_formats(&self.named())?;
        let value = match self.value.place()? {
            Place::Cpu => self.value.contiguous()?,
            Place::Gpu(_) => self.value.with_unit_last_stride()?,
        };
        let (locations, weights) = (self.locations.contiguous()?, self.weights.contiguous()?);
        Ok(Self { value, locations, weights })
    }

    fn pointers(&self) -> Result<Pointers, CallError> {
        Ok(Pointers::from([
            (Role::Value, self.value.address()?),
            (Role::Locations, self.locations.address()?),
            (Role::Weights, self.weights.address()?),
        ]))
    }

    /// Computes what the pointers lead to; `head` has what a GPU must know of the gradients.
    fn run(
        &self,
        torch: &'static Libtorch,
        direction: Direction,
        head: Head,
        levels: &[i64],
        pointers: &Pointers,
    ) -> Result<(), CallError> {
        let operands = self.tensors().map(|tensor| tensor as &dyn Described);
        match self.value.place()? {
            Place::Cpu => {
                let head = Head { place: threads(torch)?, ..Head::default() };
                with_key(head, &operands, levels, |key| {
                    // SAFETY: addresses and shapes come from the same live tensors, which were made contiguous; what
                    // is written was made for this call.
                    unsafe { cpu::run(direction, key, pointers) }
                })
            }
            Place::Gpu(ordinal) => {
                let head = Head { value_strides: strides_of(&self.value)?, ..head };
                // SAFETY: as above, with the strides that the head has.
                unsafe { gpu::launch(torch, ordinal, head, (&operands, levels), pointers) }
            }
        }
    }

    pub fn forward(self, torch: &'static Libtorch, levels: &[i64]) -> Result<Tensor, CallError> {
        check_dense(&self.named())?;
        if let Some(ordinal) = gpu_without_kernels(self.tensors())? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let output = self.copied_to_host()?.forward(torch, levels)?;
            return output.copied_to(Place::Gpu(ordinal));
        }
        let inputs = self.prepared()?;
        let (place, format) = (inputs.value.place()?, inputs.value.format()?);
        let output = Tensor::empty(torch, place, &inputs.output_shape()?, format)?;
        let pointers = inputs.pointers()?.with(Role::Output, output.address()?);
        inputs.run(torch, Direction::Forward, Head::default(), levels, &pointers)?;
        Ok(output)
    }

    pub fn backward(
        self,
        torch: &'static Libtorch,
        grad_output: Tensor,
        levels: &[i64],
        asked: Asked<3>,
    ) -> Result<Vec<Tensor>, CallError> {
        let [value, locations, weights] = self.named();
        check_dense(&[("grad_output", &grad_output), value, locations, weights])?;
        check_gradient(&grad_output, &self.value, &self.output_shape()?)?;
        if let Some(ordinal) = gpu_without_kernels(self.tensors())? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let upstream = grad_output.copied_to(Place::Cpu)?;
            let found = self.copied_to_host()?.backward(torch, upstream, levels, asked)?;
            return found.iter().map(|tensor| tensor.copied_to(Place::Gpu(ordinal))).collect();
        }
        let inputs = self.prepared()?;
        let place = inputs.value.place()?;
        let grad_output = match place {
            Place::Cpu => grad_output.contiguous()?,
            Place::Gpu(_) => grad_output,
        };
        let gradients = gradients_of(torch, place, inputs.tensors(), asked.wanted)?;
        let pointers = inputs.pointers()?.with(Role::GradOutput, grad_output.address()?);
        let pointers = asked.with_gradients(pointers, GRADIENTS, &gradients)?;
        let head = asked.head(BITS, &grad_output)?;
        inputs.run(torch, Direction::Backward, head, levels, &pointers)?;
        Ok(gradients)
    }
}

/// Strides of the value's images, heads and pixels.
pub fn strides_of(value: &Tensor) -> Result<(i64, i64, i64), CallError> {
    match value.strides()? {
        &[batch, pixel, head, _] => Ok((batch, head, pixel)),
        // Of another shape, which is refused with the problem.
        _ => Ok((0, 0, 0)),
    }
}

/// Levels as tensors.
pub struct LevelTensors {
    shapes: Tensor,
    starts: Option<Tensor>,
    points: Option<List>,
}

impl LevelTensors {
    pub fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            shapes: arguments.tensor(),
            starts: arguments.optional_tensor(),
            points: arguments.optional_list(),
        }
    }

    pub fn read(self, torch: &'static Libtorch, inputs: &Inputs) -> Result<Vec<i64>, CallError> {
        let (shape, shapes) = read_integers(self.shapes, torch, "spatial_shapes")?;
        let (&[_, 2], pairs) = (shape.as_slice(), shapes.as_chunks::<2>().0) else {
            return Err(CallError::Levels(format!(
                "`spatial_shapes` has shape {shape:?}, expected [levels, 2]: one (height, width) per level"
            )));
        };
        let starts = self.starts.map(|starts| read_integers(starts, torch, "level_start_index"));
        let starts = starts.transpose()?.map(|(_, starts)| starts);
        let points = self.points.map(|points| points.numbers()).transpose()?;
        Given { shapes: pairs, starts: starts.as_deref(), points: points.as_deref() }
            .flatten(inputs.value.shape()?, inputs.locations.shape()?)
    }
}

/// Shape and numbers of a small tensor. On a GPU that waits for it.
fn read_integers(
    tensor: Tensor,
    torch: &'static Libtorch,
    name: &'static str,
) -> Result<(Vec<i64>, Vec<i64>), CallError> {
    if let Ok(Place::Gpu(ordinal)) = tensor.place() {
        gpu::refuse_capture(torch, ordinal, || {
            format!(
                "`{name}` is on the GPU and a CUDA graph is being captured: reading it would have to wait for the GPU, \
                 which a capture cannot. Pass `{name}` as a list or as a CPU tensor"
            )
        })?;
    }
    tensor.integers(torch, name)
}
