//! The tensors that both directions of an operator read, and the calls on them.

use std::ops::RangeInclusive;

use msdeform::{DType, Error, Gradients, OffsetOptions, Operator, Role};

use super::refuse_capture;
use crate::call::{self, Framework, Place};
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{Tensor, check_dense};

/// How many axes an input may have. The same as in the Python half, `_operators.py`.
const fn axes(role: Role) -> (RangeInclusive<usize>, &'static str) {
    match role {
        Role::References => (4..=4, "[batch, queries, references, 2 or 4]"),
        Role::Locations | Role::Offsets => (5..=6, "[batch, queries, heads, levels, points, 2]"),
        Role::Weights | Role::Logits => (4..=5, "[batch, queries, heads, levels, points]"),
        _ => (4..=4, "[batch, pixels, heads, channels]"),
    }
}

impl Framework for &'static Libtorch {
    type Error = CallError;
    type Memory = Tensor;

    fn error(error: CallError) -> CallError {
        error
    }

    fn threads(&self) -> Result<i64, CallError> {
        let mut threads = 0;
        // SAFETY: the result is writable.
        let code = unsafe { (self.threads)(&raw mut threads) };
        self.succeeded(code, "tell its number of threads")?;
        Ok(i64::from(threads))
    }

    fn stream(&self, ordinal: i32) -> Result<usize, CallError> {
        self.current_stream(ordinal)
    }

    fn workspace(&self, ordinal: i32, bytes: usize) -> Result<(Tensor, u64), CallError> {
        let size = i64::try_from(bytes).map_err(|_| CallError::Size(bytes.to_string()))?;
        let memory = Tensor::empty(self, Place::Gpu(ordinal), &[size], self.byte)?;
        let at = memory.address()?;
        Ok((memory, at))
    }

    fn detached<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        run()
    }
}

/// The tensors in the order of the operator, and its options.
pub struct Inputs {
    pub operator: &'static Operator,
    pub tensors: Vec<Tensor>,
    pub rule: Option<OffsetOptions>,
}

impl Inputs {
    fn value(&self) -> &Tensor {
        &self.tensors[0]
    }

    fn named(&self) -> Vec<(&'static str, &Tensor)> {
        let names = self.operator.inputs.iter().map(|role| role.name());
        names.zip(&self.tensors).collect()
    }

    /// The GPU that the tensors are on, if one of them has a dtype that only the CPU computes in. Refused under capture: a
    /// graph cannot contain what the CPU computes.
    fn gpu_without_kernels(&self, torch: &Libtorch) -> Result<Option<Place>, CallError> {
        let has_double = self.tensors.iter().any(|tensor| tensor.dtype() == Some(DType::F64));
        let place @ Place::Gpu(ordinal) = self.value().place()? else { return Ok(None) };
        if !has_double {
            return Ok(None);
        }
        refuse_capture(torch, ordinal, || {
            "float64 is computed on the processor, which a CUDA graph cannot contain; use float32 under capture".to_owned()
        })?;
        Ok(Some(place))
    }

    fn copied_to_host(mut self) -> Result<Self, CallError> {
        for tensor in &mut self.tensors {
            *tensor = tensor.copied_to(Place::Cpu)?;
        }
        Ok(self)
    }

    /// As the kernels read them: a tensor is copied if more of its axes than [`Role::free_axes`] have strides of their own.
    fn prepared(mut self) -> Result<Self, CallError> {
        for (tensor, each) in self.named() {
            if each.dtype().is_none() {
                return Err(CallError::Dtype { tensor, found: each.format_name()? });
            }
        }
        let is_on_cpu = self.value().place()? == Place::Cpu;
        for (&role, tensor) in self.operator.inputs.iter().zip(&mut self.tensors) {
            let ((allowed, expected), found) = (axes(role), tensor.shape()?);
            if !allowed.contains(&found.len()) {
                let (tensor, found, expected) = (role.name(), found.to_vec(), expected.to_owned());
                return Err(Error::ShapeMismatch { tensor, found, expected }.into());
            }
            tensor.free_axes(role.free_axes(is_on_cpu))?;
        }
        Ok(self)
    }

    fn described(&self) -> Result<call::Inputs<'_>, CallError> {
        let tensors = self.tensors.iter().map(Tensor::described).collect::<Result<_, _>>()?;
        Ok(call::Inputs { tensors, rule: self.rule })
    }

    pub fn forward(self, torch: &'static Libtorch, levels: &[i64]) -> Result<Tensor, CallError> {
        check_dense(&self.named())?;
        if let Some(gpu) = self.gpu_without_kernels(torch)? {
            return self.copied_to_host()?.forward(torch, levels)?.copied_to(gpu);
        }
        let inputs = self.prepared()?;
        let (place, format) = (inputs.value().place()?, inputs.value().format()?);
        let call = inputs.described()?;
        let output = Tensor::empty(torch, place, &output_shape(&call)?, format)?;
        // SAFETY: the descriptions are those of live tensors, which `prepared` made contiguous but for their free axes; the output
        // was allocated for this call. PyTorch's allocator frees memory in the order of the stream.
        unsafe { call.forward(&torch, levels, (Gradients::NONE, false), output.address()?)? };
        Ok(output)
    }

    /// The gradients that are wanted; they must be bitwise reproducible if the call is `deterministic`. On the CPU they always
    /// are.
    pub fn backward(
        self,
        torch: &'static Libtorch,
        mut grad_output: Tensor,
        levels: &[i64],
        (wanted, deterministic): (&[bool], bool),
    ) -> Result<Vec<Tensor>, CallError> {
        let mut all = vec![("grad_output", &grad_output)];
        all.extend(self.named());
        check_dense(&all)?;
        if let Some(gpu) = self.gpu_without_kernels(torch)? {
            let upstream = grad_output.copied_to(Place::Cpu)?;
            let request = (wanted, deterministic);
            let found = self.copied_to_host()?.backward(torch, upstream, levels, request)?;
            return found.iter().map(|tensor| tensor.copied_to(gpu)).collect();
        }
        let inputs = self.prepared()?;
        let call = inputs.described()?;
        check_gradient(&grad_output, inputs.value(), &output_shape(&call)?)?;
        let place = inputs.value().place()?;
        if place == Place::Cpu {
            grad_output.free_axes(0)?;
        }
        // Of the shape of the input if the gradient is wanted, else empty.
        let gradient = |(tensor, &is_wanted): (&Tensor, &bool)| {
            let shape = if is_wanted { tensor.shape()? } else { &[0] };
            Tensor::empty(torch, place, shape, tensor.format()?)
        };
        let gradients = inputs.tensors.iter().zip(wanted).map(gradient);
        let gradients: Vec<Tensor> = gradients.collect::<Result<_, CallError>>()?;
        let at = gradients.iter().zip(wanted);
        let at = at.map(|(each, is_wanted)| is_wanted.then(|| each.address()).transpose());
        let at: Vec<Option<u64>> = at.collect::<Result<_, CallError>>()?;
        let upstream = grad_output.described()?;
        // SAFETY: as in `forward`, for the gradients and `grad_output`.
        unsafe { call.backward(&torch, levels, &upstream, &at, deterministic)? };
        Ok(gradients)
    }
}

fn output_shape(call: &call::Inputs<'_>) -> Result<[i64; 3], CallError> {
    call.output_shape().ok_or_else(|| CallError::Torch("a tensor lost its axes".to_owned()))
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
