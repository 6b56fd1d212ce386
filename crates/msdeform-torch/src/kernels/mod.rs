//! The kernels, between PyTorch's tensors and the addresses that `cpu` and `cuda` take. One kernel serves both: it computes where
//! its tensors are.

mod gpu;
mod inputs;
mod level_tensors;

use msdeform::OffsetOptions;

use crate::boxed::{Arguments, Kernel};
use crate::error::CallError;
use crate::tensor::Tensor;
use inputs::{Asked, Inputs};
use level_tensors::LevelTensors;

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

impl Kernel for Forward {
    const ARGUMENTS: usize = 5;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let inputs = Inputs::<3>::take(arguments);
        // The last one asks for the same bits in every run, which an output has.
        let (levels, _deterministic) = (arguments.list(), arguments.flag());
        Ok(vec![inputs.forward(arguments.torch(), &levels.numbers()?, None)?])
    }
}

impl Kernel for ForwardReading {
    const ARGUMENTS: usize = 7;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let inputs = Inputs::<3>::take(arguments);
        let (levels, _deterministic) = (LevelTensors::take(arguments), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        Ok(vec![inputs.forward(arguments.torch(), &levels, None)?])
    }
}

impl Kernel for Backward {
    const ARGUMENTS: usize = 7;
    const RESULTS: usize = 3;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let inputs = Inputs::<3>::take(arguments);
        let (levels, wanted, deterministic) =
            (arguments.list(), arguments.list(), arguments.flag());
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels.numbers()?, None, asked)
    }
}

impl Kernel for BackwardReading {
    const ARGUMENTS: usize = 9;
    const RESULTS: usize = 3;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let inputs = Inputs::<3>::take(arguments);
        let levels = LevelTensors::take(arguments);
        let (wanted, deterministic) = (arguments.list(), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels, None, asked)
    }
}

impl Kernel for FromOffsets {
    const ARGUMENTS: usize = 10;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let inputs = Inputs::<4>::take(arguments);
        let (levels, rule) = (arguments.list(), take_rule(arguments));
        let _deterministic = arguments.flag();
        Ok(vec![inputs.forward(arguments.torch(), &levels.numbers()?, Some(rule))?])
    }
}

impl Kernel for FromOffsetsBackward {
    const ARGUMENTS: usize = 12;
    const RESULTS: usize = 4;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let inputs = Inputs::<4>::take(arguments);
        let (levels, rule, wanted) = (arguments.list(), take_rule(arguments), arguments.list());
        let deterministic = arguments.flag();
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels.numbers()?, Some(rule), asked)
    }
}

fn take_rule(arguments: &mut Arguments<'_>) -> OffsetOptions {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a scale is a number like 0.5, and the kernels compute in f32"
    )]
    let scale = arguments.fraction() as f32;
    let [anchors, softmax, nearest] = std::array::from_fn(|_| arguments.flag());
    OffsetOptions { anchors, scale, softmax, nearest }
}
