//! The kernels, between PyTorch's tensors and the addresses that `cpu` and `cuda` take. One kernel serves both: it computes where
//! its tensors are.

mod from_offsets;
mod gpu;
mod plain;

use msdeform::{DType, Role};
use msdeform_cuda::Pointers;

use crate::boxed::{Arguments, Kernel};
use crate::call::{Head, Rule};
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{Place, Tensor};
use from_offsets::OffsetInputs;
use plain::{Inputs, LevelTensors};

/// `ms_deform_attn`.
pub struct Forward;
/// `ms_deform_attn_backward`.
pub struct Backward;
/// `ms_deform_attn.tensor_levels`.
pub struct ForwardReading;
/// `ms_deform_attn_backward.tensor_levels`.
pub struct BackwardReading;
/// `ms_deform_attn_from_offsets`.
pub struct FromOffsets;
/// `ms_deform_attn_from_offsets_backward`.
pub struct FromOffsetsBackward;

/// What a backward call is asked for, beside its tensors.
#[derive(Clone, Copy)]
struct Asked<const TENSORS: usize> {
    /// Which gradients.
    wanted: [bool; TENSORS],
    /// Whether they must have the same bits in every run; on the processor they have.
    deterministic: bool,
}

impl<const TENSORS: usize> Asked<TENSORS> {
    /// Leads to the gradients too. What says that nobody wants one is 0.
    fn with_gradients(
        &self,
        mut pointers: Pointers,
        roles: [Role; TENSORS],
        gradients: &[Tensor],
    ) -> Result<Pointers, CallError> {
        for ((role, gradient), is_wanted) in roles.into_iter().zip(gradients).zip(self.wanted) {
            pointers = pointers.with(role, if is_wanted { gradient.address()? } else { 0 });
        }
        Ok(pointers)
    }

    /// What a GPU must know of them, with the bit that each gradient has in a [`Head`].
    fn head(&self, bits: [i64; TENSORS], grad_output: &Tensor) -> Result<Head, CallError> {
        let &[batch, query, channel] = grad_output.strides()? else {
            return Err(CallError::Torch("`grad_output` lost its axes".to_owned()));
        };
        let gradients = bits.into_iter().zip(self.wanted).map(|(bit, is)| bit * i64::from(is));
        Ok(Head {
            gradients: gradients.sum(),
            deterministic: self.deterministic,
            grad_strides: (batch, query, channel),
            ..Head::default()
        })
    }
}

impl Kernel for Forward {
    const ARGUMENTS: usize = 5;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let inputs = Inputs::take(arguments);
        // The last one asks for the same bits in every run, which an output has.
        let (levels, _deterministic) = (arguments.list(), arguments.flag());
        Ok(vec![inputs.forward(arguments.torch(), &levels.numbers()?)?])
    }
}

impl Kernel for ForwardReading {
    const ARGUMENTS: usize = 7;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let inputs = Inputs::take(arguments);
        let (levels, _deterministic) = (LevelTensors::take(arguments), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        Ok(vec![inputs.forward(arguments.torch(), &levels)?])
    }
}

impl Kernel for Backward {
    const ARGUMENTS: usize = 7;
    const RESULTS: usize = 3;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let inputs = Inputs::take(arguments);
        let (levels, wanted, deterministic) =
            (arguments.list(), arguments.list(), arguments.flag());
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels.numbers()?, asked)
    }
}

impl Kernel for BackwardReading {
    const ARGUMENTS: usize = 9;
    const RESULTS: usize = 3;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let inputs = Inputs::take(arguments);
        let levels = LevelTensors::take(arguments);
        let (wanted, deterministic) = (arguments.list(), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels, asked)
    }
}

impl Kernel for FromOffsets {
    const ARGUMENTS: usize = 10;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let source = OffsetInputs::take(arguments);
        let (levels, rule) = (arguments.list(), take_rule(arguments));
        let _deterministic = arguments.flag();
        Ok(vec![source.forward(arguments.torch(), &levels.numbers()?, rule)?])
    }
}

impl Kernel for FromOffsetsBackward {
    const ARGUMENTS: usize = 12;
    const RESULTS: usize = 4;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let source = OffsetInputs::take(arguments);
        let (levels, rule, wanted) = (arguments.list(), take_rule(arguments), arguments.list());
        let deterministic = arguments.flag();
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        source.backward(arguments.torch(), grad_output, &levels.numbers()?, rule, asked)
    }
}

fn take_rule(arguments: &mut Arguments<'_>) -> Rule {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a scale is a number like 0.5, and the kernels compute in f32"
    )]
    let scale = arguments.fraction() as f32;
    Rule { anchors: arguments.flag(), scale, softmax: arguments.flag(), nearest: arguments.flag() }
}

fn threads(torch: &Libtorch) -> Result<i64, CallError> {
    let mut threads = 0;
    // SAFETY: the result is writable.
    let code = unsafe { (torch.threads)(&raw mut threads) };
    torch.succeeded(code, "tell its number of threads")?;
    Ok(i64::from(threads))
}

/// A tensor like each: of its shape if it is wanted, else empty.
fn gradients_of<const COUNT: usize>(
    torch: &'static Libtorch,
    place: Place,
    tensors: [&Tensor; COUNT],
    wanted: [bool; COUNT],
) -> Result<Vec<Tensor>, CallError> {
    let gradient = |(tensor, is_wanted): (&Tensor, bool)| {
        let shape = if is_wanted { tensor.shape()? } else { &[0] };
        Tensor::empty(torch, place, shape, tensor.format()?)
    };
    tensors.into_iter().zip(wanted).map(gradient).collect()
}

/// The GPU that the tensors are on, if one of them has a format that only the processor computes in.
fn gpu_without_kernels<const COUNT: usize>(
    tensors: [&Tensor; COUNT],
) -> Result<Option<i32>, CallError> {
    let has_double = tensors.iter().any(|tensor| tensor.dtype() == Some(DType::F64));
    Ok(match tensors[0].place()? {
        Place::Gpu(ordinal) if has_double => Some(ordinal),
        _ => None,
    })
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
