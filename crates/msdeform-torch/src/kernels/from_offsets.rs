//! The operator from offsets and logits.

use msdeform::{Direction, Role};
use msdeform_cuda::Pointers;

use super::plain::strides_of;
use super::{Asked, check_gradient, gpu, gpu_without_kernels, gradients_of, threads};
use crate::boxed::Arguments;
use crate::call::{Described, Head, Rule, with_key};
use crate::cpu::{self, SourceStrides};
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{Place, Tensor, check_dense, check_formats};

const NAMES: [&str; 4] = ["value", "reference_points", "sampling_offsets", "attention_logits"];
const GRADIENTS: [Role; 4] =
    [Role::GradValue, Role::GradReferences, Role::GradOffsets, Role::GradLogits];
/// What each of them is in [`Head::gradients`].
const BITS: [i64; 4] = [1, 8, 2, 4];

/// What both directions read.
pub struct OffsetInputs {
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
}

impl OffsetInputs {
    pub fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            value: arguments.tensor(),
            references: arguments.tensor(),
            offsets: arguments.tensor(),
            logits: arguments.tensor(),
        }
    }

    const fn tensors(&self) -> [&Tensor; 4] {
        [&self.value, &self.references, &self.offsets, &self.logits]
    }

    fn named(&self) -> [(&'static str, &Tensor); 4] {
        let tensors = self.tensors();
        std::array::from_fn(|at| (NAMES[at], tensors[at]))
    }

    fn copied_to_host(&self) -> Result<Self, CallError> {
        Ok(Self {
            value: self.value.copied_to(Place::Cpu)?,
            references: self.references.copied_to(Place::Cpu)?,
            offsets: self.offsets.copied_to(Place::Cpu)?,
            logits: self.logits.copied_to(Place::Cpu)?,
        })
    }

    fn check_shapes(&self) -> Result<(), CallError> {
        let named = self.named();
        check_formats(&named)?;
        for (name, tensor) in named {
            if tensor.shape()?.len() < 4 {
                let (found, expected) = (tensor.shape()?.to_vec(), "at least four axes".to_owned());
                return Err(CallError::Shape { tensor: name, found, expected });
            }
        }
        let axes = [
            (4..=4, "[N, S, M, D]"),
            (4..=4, "[N, Lq, references, 2 or 4]"),
            (5..=6, "[N, Lq, M, L, P, 2]"),
            (4..=5, "[N, Lq, M, L, P]"),
        ];
        for ((tensor, shape), (allowed, expected)) in named.into_iter().zip(axes) {
            let found = shape.shape()?.len();
            if !allowed.contains(&found) {
                return Err(CallError::Axes { tensor, found, expected });
            }
        }
        Ok(())
    }

    /// As the kernels read them: images and queries may have any strides, on a GPU those of larger values too.
    fn prepared(self) -> Result<Self, CallError> {
        self.check_shapes()?;
        let (value, free_axes_of_references) = match self.value.place()? {
            Place::Cpu => (self.value.contiguous()?, 3),
            Place::Gpu(_) => (self.value.with_unit_last_stride()?, 2),
        };
        Ok(Self {
            value,
            references: self.references.with_free_axes(free_axes_of_references)?,
            offsets: self.offsets.with_free_axes(2)?,
            logits: self.logits.with_free_axes(2)?,
        })
    }

    fn output_shape(&self) -> Result<[i64; 3], CallError> {
        let (value, offsets) = (self.value.shape()?, self.offsets.shape()?);
        Ok([value[0], offsets[1], value[2].saturating_mul(value[3])])
    }

    fn pointers(&self) -> Result<Pointers, CallError> {
        Ok(Pointers::from([
            (Role::Value, self.value.address()?),
            (Role::References, self.references.address()?),
            (Role::Offsets, self.offsets.address()?),
            (Role::Logits, self.logits.address()?),
        ]))
    }

    fn strides(&self) -> Result<SourceStrides, CallError> {
        let stride = |tensor: &Tensor, axis: usize| -> Result<usize, CallError> {
            let stride = tensor.strides()?[axis];
            usize::try_from(stride).map_err(|_| CallError::Size(stride.to_string()))
        };
        let (references, offsets, logits) = (&self.references, &self.offsets, &self.logits);
        Ok((
            (stride(references, 0)?, stride(references, 1)?, stride(references, 2)?),
            (stride(offsets, 0)?, stride(offsets, 1)?),
            (stride(logits, 0)?, stride(logits, 1)?),
        ))
    }

    /// Computes what the pointers lead to; `head` has the rule, and what a GPU must know of the gradients.
    fn run(
        &self,
        torch: &'static Libtorch,
        direction: Direction,
        head: Head,
        levels: &[i64],
        pointers: &Pointers,
    ) -> Result<(), CallError> {
        let operands = self.tensors().map(|tensor| tensor as &dyn Described);
        let strides = self.strides()?;
        match self.value.place()? {
            Place::Cpu => {
                let head = Head { place: threads(torch)?, rule: head.rule, ..Head::default() };
                with_key(head, &operands, levels, |key| {
                    // SAFETY: addresses, shapes and strides come from the same live tensors; what is written was made
                    // for this call.
                    unsafe { cpu::run_from_offsets(direction, key, pointers, &strides) }
                })
            }
            Place::Gpu(ordinal) => {
                let ((image, query, _), offsets, logits) = strides;
                let rows = [(image, query), offsets, logits];
                let head = Head {
                    value_strides: strides_of(&self.value)?,
                    source_strides: rows.map(|(image, query)| (image as i64, query as i64)),
                    ..head
                };
                // SAFETY: as above, with the strides that the head has.
                unsafe { gpu::launch(torch, ordinal, head, (&operands, levels), pointers) }
            }
        }
    }

    pub fn forward(
        self,
        torch: &'static Libtorch,
        levels: &[i64],
        rule: Rule,
    ) -> Result<Tensor, CallError> {
        check_dense(&self.named())?;
        if let Some(ordinal) = gpu_without_kernels(self.tensors())? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let output = self.copied_to_host()?.forward(torch, levels, rule)?;
            return output.copied_to(Place::Gpu(ordinal));
        }
        let source = self.prepared()?;
        let (place, format) = (source.value.place()?, source.value.format()?);
        let output = Tensor::empty(torch, place, &source.output_shape()?, format)?;
        let pointers = source.pointers()?.with(Role::Output, output.address()?);
        let head = Head { rule: Some(rule), ..Head::default() };
        source.run(torch, Direction::Forward, head, levels, &pointers)?;
        Ok(output)
    }

    pub fn backward(
        self,
        torch: &'static Libtorch,
        grad_output: Tensor,
        levels: &[i64],
        rule: Rule,
        asked: Asked<4>,
    ) -> Result<Vec<Tensor>, CallError> {
        check_dense(&[("grad_output", &grad_output)])?;
        check_dense(&self.named())?;
        if let Some(ordinal) = gpu_without_kernels(self.tensors())? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let upstream = grad_output.copied_to(Place::Cpu)?;
            let found = self.copied_to_host()?.backward(torch, upstream, levels, rule, asked)?;
            return found.iter().map(|tensor| tensor.copied_to(Place::Gpu(ordinal))).collect();
        }
        let source = self.prepared()?;
        check_dense(&[("grad_output", &grad_output), (NAMES[0], &source.value)])?;
        check_gradient(&grad_output, &source.value, &source.output_shape()?)?;
        let place = source.value.place()?;
        let grad_output = match place {
            Place::Cpu => grad_output.contiguous()?,
            Place::Gpu(_) => grad_output,
        };
        let gradients = gradients_of(torch, place, source.tensors(), asked.wanted)?;
        let pointers = source.pointers()?.with(Role::GradOutput, grad_output.address()?);
        let pointers = asked.with_gradients(pointers, GRADIENTS, &gradients)?;
        let head = Head { rule: Some(rule), ..asked.head(BITS, &grad_output)? };
        source.run(torch, Direction::Backward, head, levels, &pointers)?;
        Ok(gradients)
    }
}
