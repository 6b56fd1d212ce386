//! The tensors that both directions of an operator read, and the calls on them.

use std::ops::RangeInclusive;

use msdeform::{DType, Direction, Error, OffsetOptions, Operator, Role};
use msdeform_cuda::Pointers;

use super::gpu;
use crate::call::{self, Head, gradient_bits, operator_with, with_key};
use crate::cpu;
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{Place, Tensor, check_dense, check_formats};

/// How many axes an input may have. The same as in the Python half, `_operators.py`.
const fn axes(role: Role) -> (RangeInclusive<usize>, &'static str) {
    match role {
        Role::References => (4..=4, "[batch, queries, references, 2 or 4]"),
        Role::Locations | Role::Offsets => (5..=6, "[batch, queries, heads, levels, points, 2]"),
        Role::Weights | Role::Logits => (4..=5, "[batch, queries, heads, levels, points]"),
        _ => (4..=4, "[batch, pixels, heads, channels]"),
    }
}

/// The gradients that a backward call computes.
pub struct Request {
    /// Which of them, one flag for each input.
    pub wanted: Vec<bool>,
    /// Whether they must be bitwise reproducible; on the CPU they always are.
    pub deterministic: bool,
}

/// The tensors in the order of the operator, and its options.
pub struct Inputs {
    pub tensors: Vec<Tensor>,
    pub rule: Option<OffsetOptions>,
}

impl Inputs {
    const fn operator(&self) -> &'static Operator {
        operator_with(self.rule.as_ref())
    }

    fn value(&self) -> &Tensor {
        &self.tensors[0]
    }

    /// The input that has a position for every sample.
    pub fn positions(&self) -> (Role, &Tensor) {
        let at = self.tensors.len() - 2;
        (self.operator().inputs[at], &self.tensors[at])
    }

    fn named(&self) -> Vec<(&'static str, &Tensor)> {
        let names = self.operator().inputs.iter().map(|role| role.name());
        names.zip(&self.tensors).collect()
    }

    /// Shapes of the values and of the positions.
    pub fn shapes(&self) -> Result<(&[i64], &[i64]), CallError> {
        Ok((self.value().shape()?, self.positions().1.shape()?))
    }

    fn output_shape(&self) -> Result<[i64; 3], CallError> {
        match self.shapes()? {
            (&[batch, _, heads, channels], &[_, queries, ..]) => {
                Ok([batch, queries, heads.saturating_mul(channels)])
            }
            _ => Err(CallError::Torch("a tensor lost its axes".to_owned())),
        }
    }

    /// The GPU that the tensors are on, if one of them has a dtype that only the CPU computes in.
    fn gpu_without_kernels(&self) -> Result<Option<i32>, CallError> {
        let has_double = self.tensors.iter().any(|tensor| tensor.dtype() == Some(DType::F64));
        Ok(match self.value().place()? {
            Place::Gpu(ordinal) if has_double => Some(ordinal),
            _ => None,
        })
    }

    fn copied_to_host(mut self) -> Result<Self, CallError> {
        for tensor in &mut self.tensors {
            *tensor = tensor.copied_to(Place::Cpu)?;
        }
        Ok(self)
    }

    fn check_axes(&self) -> Result<(), CallError> {
        for (&role, tensor) in self.operator().inputs.iter().zip(&self.tensors) {
            let ((allowed, expected), found) = (axes(role), tensor.shape()?);
            if !allowed.contains(&found.len()) {
                let (tensor, found, expected) = (role.name(), found.to_vec(), expected.to_owned());
                return Err(Error::ShapeMismatch { tensor, found, expected }.into());
            }
        }
        Ok(())
    }

    /// As the kernels read them: a tensor is copied if more of its axes than [`Role::free_axes`] have strides of their own.
    fn prepared(mut self) -> Result<Self, CallError> {
        check_formats(&self.named())?;
        self.check_axes()?;
        let is_on_cpu = self.value().place()? == Place::Cpu;
        for (&role, tensor) in self.operator().inputs.iter().zip(&mut self.tensors) {
            tensor.free_axes(role.free_axes(is_on_cpu))?;
        }
        Ok(self)
    }

    /// Computes into the results that `with_results` adds to the pointers; `head` describes the gradients to a GPU.
    fn run(
        &self,
        torch: &'static Libtorch,
        direction: Direction,
        head: Head,
        levels: &[i64],
        with_results: impl FnOnce(Pointers) -> Result<Pointers, CallError>,
    ) -> Result<(), CallError> {
        let inputs = call::Inputs { tensors: &self.tensors, rule: self.rule };
        let pointers = with_results(inputs.pointers()?)?;
        match self.value().place()? {
            Place::Cpu => {
                let (head, strides) = inputs.head_of_cpu(threads(torch)?)?;
                with_key(head, &self.tensors, levels, |key| {
                    // SAFETY: addresses, shapes and strides come from the same live tensors, which `prepared` made contiguous
                    // but for these strides; the results were allocated for this call.
                    unsafe { cpu::run(direction, key, &pointers, strides.as_ref()) }
                })
            }
            Place::Gpu(ordinal) => {
                let head = inputs.head_of_gpu(i64::from(ordinal), head)?;
                // SAFETY: as above, with the strides that the head has.
                unsafe { gpu::launch(torch, ordinal, head, (&self.tensors, levels), &pointers) }
            }
        }
    }

    pub fn forward(self, torch: &'static Libtorch, levels: &[i64]) -> Result<Tensor, CallError> {
        check_dense(&self.named())?;
        if let Some(ordinal) = self.gpu_without_kernels()? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let output = self.copied_to_host()?.forward(torch, levels)?;
            return output.copied_to(Place::Gpu(ordinal));
        }
        let inputs = self.prepared()?;
        let (place, format) = (inputs.value().place()?, inputs.value().format()?);
        let output = Tensor::empty(torch, place, &inputs.output_shape()?, format)?;
        inputs.run(torch, Direction::Forward, Head::default(), levels, |pointers| {
            Ok(pointers.with(Role::Output, output.address()?))
        })?;
        Ok(output)
    }

    pub fn backward(
        self,
        torch: &'static Libtorch,
        mut grad_output: Tensor,
        levels: &[i64],
        request: Request,
    ) -> Result<Vec<Tensor>, CallError> {
        let mut all = vec![("grad_output", &grad_output)];
        all.extend(self.named());
        check_dense(&all)?;
        if let Some(ordinal) = self.gpu_without_kernels()? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let upstream = grad_output.copied_to(Place::Cpu)?;
            let found = self.copied_to_host()?.backward(torch, upstream, levels, request)?;
            return found.iter().map(|tensor| tensor.copied_to(Place::Gpu(ordinal))).collect();
        }
        let inputs = self.prepared()?;
        check_gradient(&grad_output, inputs.value(), &inputs.output_shape()?)?;
        let place = inputs.value().place()?;
        if place == Place::Cpu {
            grad_output.free_axes(0)?;
        }
        let &[batch, query, channel] = grad_output.strides()? else {
            return Err(CallError::Torch("`grad_output` lost its axes".to_owned()));
        };
        // Of the shape of the input if the gradient is wanted, else empty.
        let gradient = |(tensor, is_wanted): (&Tensor, bool)| {
            let shape = if is_wanted { tensor.shape()? } else { &[0] };
            Tensor::empty(torch, place, shape, tensor.format()?)
        };
        let Request { wanted, deterministic } = request;
        let each = inputs.tensors.iter().zip(wanted.iter().copied());
        let gradients: Vec<Tensor> = each.map(gradient).collect::<Result<_, CallError>>()?;
        let head = Head {
            gradients: gradient_bits(inputs.operator(), wanted.iter().copied()),
            deterministic,
            grad_strides: (batch, query, channel),
            ..Head::default()
        };
        inputs.run(torch, Direction::Backward, head, levels, |pointers| {
            let mut pointers = pointers.with(Role::GradOutput, grad_output.address()?);
            let roles = inputs.operator().written(Direction::Backward);
            for ((role, gradient), is_wanted) in roles.zip(&gradients).zip(wanted) {
                // The address 0 means that the gradient is not wanted.
                pointers = pointers.with(role, if is_wanted { gradient.address()? } else { 0 });
            }
            Ok(pointers)
        })?;
        Ok(gradients)
    }
}

fn threads(torch: &Libtorch) -> Result<i64, CallError> {
    let mut threads = 0;
    // SAFETY: the result is writable.
    let code = unsafe { (torch.threads)(&raw mut threads) };
    torch.succeeded(code, "tell its number of threads")?;
    Ok(i64::from(threads))
}

fn check_gradient(grad_output: &Tensor, value: &Tensor, expected: &[i64]) -> Result<(), CallError> {
    if grad_output.shape()? == expected && grad_output.format()? == value.format()? {
        return Ok(());
    }
    Err(CallError::GradOutput {
        found: grad_output.shape()?.to_vec(),
        format: grad_output.format_name()?,
        expected: expected.to_vec(),
        expected_format: value.format_name()?,
    })
}
