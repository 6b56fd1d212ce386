//! The kernels, between PyTorch's tensors and the addresses that `cpu` and `cuda` take. A kernel computes where its tensors are, on
//! the CPU or on a GPU.

mod gpu;
mod inputs;
mod level_tensors;

use std::marker::PhantomData;

use msdeform::{OffsetOptions, Operator, Role};

use crate::boxed::{Arguments, Kernel};
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{List, Tensor};
use inputs::{Inputs, Request};

pub use level_tensors::LevelTensors;

/// The output of an operator, by its place in [`Operator::ALL`], with its levels given as `L`.
pub struct Forward<const OPERATOR: usize, L>(PhantomData<L>);
/// The gradients of that operator.
pub struct Backward<const OPERATOR: usize, L>(PhantomData<L>);

/// The arguments of a schema that describe the levels.
pub trait Levels: Sized {
    /// How many they are.
    const ARGUMENTS: usize;
    /// Whether some of them may be missing.
    const HAS_OPTIONAL: bool;

    /// Takes them.
    fn take(arguments: &mut Arguments<'_>) -> Self;

    /// Four numbers for each level.
    fn read(self, torch: &'static Libtorch, inputs: &Inputs) -> Result<Vec<i64>, CallError>;
}

impl Levels for List {
    const ARGUMENTS: usize = 1;
    const HAS_OPTIONAL: bool = false;

    fn take(arguments: &mut Arguments<'_>) -> Self {
        arguments.list()
    }

    fn read(self, _: &'static Libtorch, _: &Inputs) -> Result<Vec<i64>, CallError> {
        self.numbers()
    }
}

/// Arguments of a schema for the options of an operator: four for one that reads references, else none.
const fn option_arguments(operator: &Operator) -> usize {
    let mut at = 0;
    while at < operator.inputs.len() {
        if matches!(operator.inputs[at], Role::References) {
            return 4;
        }
        at += 1;
    }
    0
}

/// Tensors, levels and options: what the schemas of both directions have in common.
struct Call<const OPERATOR: usize, L> {
    inputs: Inputs,
    levels: L,
}

impl<const OPERATOR: usize, L: Levels> Call<OPERATOR, L> {
    const READS: &Operator = Operator::ALL[OPERATOR];
    const OPTIONS: usize = option_arguments(Self::READS);
    const ARGUMENTS: usize = Self::READS.inputs.len() + L::ARGUMENTS + Self::OPTIONS;

    fn take(arguments: &mut Arguments<'_>) -> Self {
        let tensors = Self::READS.inputs.iter().map(|_| arguments.tensor()).collect();
        let levels = L::take(arguments);
        let rule = (Self::OPTIONS > 0).then(|| take_options(arguments));
        Self { inputs: Inputs { tensors, rule }, levels }
    }
}

impl<const OPERATOR: usize, L: Levels> Kernel for Forward<OPERATOR, L> {
    const ARGUMENTS: usize = Call::<OPERATOR, L>::ARGUMENTS + 1;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let Call { inputs, levels } = Call::<OPERATOR, L>::take(arguments);
        // An output is always bitwise reproducible.
        let _deterministic = arguments.flag();
        let levels = levels.read(arguments.torch(), &inputs)?;
        Ok(vec![inputs.forward(arguments.torch(), &levels)?])
    }
}

impl<const OPERATOR: usize, L: Levels> Kernel for Backward<OPERATOR, L> {
    const ARGUMENTS: usize = Call::<OPERATOR, L>::ARGUMENTS + 3;
    const RESULTS: usize = Call::<OPERATOR, L>::READS.inputs.len();

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let Call { inputs, levels } = Call::<OPERATOR, L>::take(arguments);
        let (wanted, deterministic) = (arguments.list(), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        let request = Request { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels, request)
    }
}

fn take_options(arguments: &mut Arguments<'_>) -> OffsetOptions {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a scale is a number like 0.5, and the kernels compute in f32"
    )]
    let scale = arguments.fraction() as f32;
    let [anchors, softmax, nearest] = std::array::from_fn(|_| arguments.flag());
    OffsetOptions { anchors, scale, softmax, nearest }
}
