//! The tensors that both directions of an operator read, and what is computed of them.

use std::ops::RangeInclusive;

use msdeform::{ATTENTION, DType, Direction, Error, FROM_OFFSETS, OffsetOptions, Operator, Role};
use msdeform_cuda::Pointers;

use super::gpu;
use crate::boxed::Arguments;
use crate::call::{self, Described, Head, gradient_bits, with_key};
use crate::cpu;
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{Place, Tensor, check_dense, check_formats};

/// How many axes value, references, offsets and logits have.
const AXES: [(RangeInclusive<usize>, &str); 4] = [
    (4..=4, "[N, S, M, D]"),
    (4..=4, "[N, Lq, references, 2 or 4]"),
    (5..=6, "[N, Lq, M, L, P, 2]"),
    (4..=5, "[N, Lq, M, L, P]"),
];

/// What a backward call is asked for, beside its tensors.
#[derive(Clone, Copy)]
pub struct Asked<const TENSORS: usize> {
    /// Which gradients.
    pub wanted: [bool; TENSORS],
    /// Whether they must have the same bits in every run; on the processor they have.
    pub deterministic: bool,
}

/// What both directions read, in the order of the operator; its rule comes with the call.
pub struct Inputs<const TENSORS: usize>([Tensor; TENSORS]);

impl<const TENSORS: usize> Inputs<TENSORS> {
    /// Whether the operator is that with references, offsets and logits.
    pub const FROM_OFFSETS: bool = TENSORS == FROM_OFFSETS.inputs.len();

    const fn operator() -> &'static Operator {
        if Self::FROM_OFFSETS { &FROM_OFFSETS } else { &ATTENTION }
    }

    pub fn take(arguments: &mut Arguments<'_>) -> Self {
        Self(std::array::from_fn(|_| arguments.tensor()))
    }

    const fn value(&self) -> &Tensor {
        &self.0[0]
    }

    /// Locations or offsets.
    const fn positions(&self) -> &Tensor {
        &self.0[TENSORS - 2]
    }

    fn named(&self) -> [(&'static str, &Tensor); TENSORS] {
        std::array::from_fn(|at| (Self::operator().inputs[at].name(), &self.0[at]))
    }

    /// Shapes of the values and of locations or offsets.
    pub fn shapes(&self) -> Result<(&[i64], &[i64]), CallError> {
        Ok((self.value().shape()?, self.positions().shape()?))
    }

    fn output_shape(&self) -> Result<[i64; 3], CallError> {
        let named = self.named();
        let wrong = |at: usize, found: &[i64], expected: &str| {
            let (tensor, found, expected) = (named[at].0, found.to_vec(), expected.to_owned());
            CallError::Problem(Error::ShapeMismatch { tensor, found, expected })
        };
        let (value, positions) = self.shapes()?;
        let &[batch, _, heads, channels] = value else {
            return Err(wrong(0, value, "[batch, pixels, heads, channels]"));
        };
        let &[_, queries, ..] = positions else {
            let expected = "[batch, queries, heads, levels, points, 2]";
            return Err(wrong(TENSORS - 2, positions, expected));
        };
        Ok([batch, queries, heads.saturating_mul(channels)])
    }

    /// The GPU that the tensors are on, if one of them has a format that only the processor computes in.
    fn gpu_without_kernels(&self) -> Result<Option<i32>, CallError> {
        let has_double = self.0.iter().any(|tensor| tensor.dtype() == Some(DType::F64));
        Ok(match self.value().place()? {
            Place::Gpu(ordinal) if has_double => Some(ordinal),
            _ => None,
        })
    }

    fn copied_to_host(mut self) -> Result<Self, CallError> {
        for tensor in &mut self.0 {
            *tensor = tensor.copied_to(Place::Cpu)?;
        }
        Ok(self)
    }

    fn check_axes(&self) -> Result<(), CallError> {
        for (tensor, found) in self.named() {
            if found.shape()?.len() < 4 {
                let (found, expected) = (found.shape()?.to_vec(), "at least four axes".to_owned());
                return Err(Error::ShapeMismatch { tensor, found, expected }.into());
            }
        }
        for ((tensor, found), (allowed, expected)) in self.named().into_iter().zip(AXES) {
            let found = found.shape()?.len();
            if !allowed.contains(&found) {
                return Err(CallError::Axes { tensor, found, expected });
            }
        }
        Ok(())
    }

    /// As the kernels read them: on a GPU slices of larger values are read in place, and images and queries of what samples
    /// follow from may have any strides.
    fn prepared(mut self) -> Result<Self, CallError> {
        check_formats(&self.named())?;
        if Self::FROM_OFFSETS {
            self.check_axes()?;
        }
        let is_host = self.value().place()? == Place::Cpu;
        let (value, samples) = self.0.split_at_mut(1);
        if is_host { value[0].free_axes(0) } else { value[0].unit_last_stride() }?;
        for (at, tensor) in samples.iter_mut().enumerate() {
            tensor.free_axes(match (Self::FROM_OFFSETS, at) {
                (false, _) => 0,
                (true, 0) if is_host => 3,
                (true, _) => 2,
            })?;
        }
        Ok(self)
    }

    fn described(&self) -> [&dyn Described; TENSORS] {
        self.0.each_ref().map(|tensor| tensor as &dyn Described)
    }

    /// Computes what the pointers lead to; `head` has what a GPU must know of the gradients.
    fn run(
        &self,
        torch: &'static Libtorch,
        direction: Direction,
        (head, rule): (Head, Option<OffsetOptions>),
        levels: &[i64],
        with_results: impl FnOnce(Pointers) -> Result<Pointers, CallError>,
    ) -> Result<(), CallError> {
        let tensors = self.described();
        let inputs = call::Inputs { tensors: &tensors, rule };
        let pointers = with_results(inputs.pointers()?)?;
        match self.value().place()? {
            Place::Cpu => {
                let (head, strides) = inputs.head_of_cpu(threads(torch)?)?;
                with_key(head, &tensors, levels, |key| {
                    // SAFETY: addresses, shapes and strides come from the same live tensors, which were made contiguous but
                    // for these strides; what is written was made for this call.
                    unsafe { cpu::run(direction, key, &pointers, strides.as_ref()) }
                })
            }
            Place::Gpu(ordinal) => {
                let head = inputs.head_of_gpu(i64::from(ordinal), head)?;
                // SAFETY: as above, with the strides that the head has.
                unsafe { gpu::launch(torch, ordinal, head, (&tensors, levels), &pointers) }
            }
        }
    }

    pub fn forward(
        self,
        torch: &'static Libtorch,
        levels: &[i64],
        rule: Option<OffsetOptions>,
    ) -> Result<Tensor, CallError> {
        check_dense(&self.named())?;
        if let Some(ordinal) = self.gpu_without_kernels()? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let output = self.copied_to_host()?.forward(torch, levels, rule)?;
            return output.copied_to(Place::Gpu(ordinal));
        }
        let inputs = self.prepared()?;
        let (place, format) = (inputs.value().place()?, inputs.value().format()?);
        let output = Tensor::empty(torch, place, &inputs.output_shape()?, format)?;
        inputs.run(torch, Direction::Forward, (Head::default(), rule), levels, |pointers| {
            Ok(pointers.with(Role::Output, output.address()?))
        })?;
        Ok(output)
    }

    pub fn backward(
        self,
        torch: &'static Libtorch,
        mut grad_output: Tensor,
        levels: &[i64],
        rule: Option<OffsetOptions>,
        asked: Asked<TENSORS>,
    ) -> Result<Vec<Tensor>, CallError> {
        let mut all = [("grad_output", &grad_output); 1 + AXES.len()];
        all[1..=TENSORS].copy_from_slice(&self.named());
        check_dense(&all[..=TENSORS])?;
        if let Some(ordinal) = self.gpu_without_kernels()? {
            gpu::refuse_captured_double(torch, ordinal)?;
            let upstream = grad_output.copied_to(Place::Cpu)?;
            let found = self.copied_to_host()?.backward(torch, upstream, levels, rule, asked)?;
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
        // A tensor like each input: of its shape if it is wanted, else empty.
        let gradient = |(tensor, is_wanted): (&Tensor, bool)| {
            let shape = if is_wanted { tensor.shape()? } else { &[0] };
            Tensor::empty(torch, place, shape, tensor.format()?)
        };
        let each = inputs.0.iter().zip(asked.wanted);
        let gradients: Vec<Tensor> = each.map(gradient).collect::<Result<_, CallError>>()?;
        let head = Head {
            gradients: gradient_bits(Self::operator(), asked.wanted),
            deterministic: asked.deterministic,
            grad_strides: (batch, query, channel),
            ..Head::default()
        };
        inputs.run(torch, Direction::Backward, (head, rule), levels, |pointers| {
            let mut pointers = pointers.with(Role::GradOutput, grad_output.address()?);
            let roles = Self::operator().written(Direction::Backward);
            for ((role, gradient), is_wanted) in roles.zip(&gradients).zip(asked.wanted) {
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
