//! The kernels, between PyTorch's tensors and the addresses that `cpu` and `cuda` take. One kernel serves both: it computes where
//! its tensors are.

mod gpu;
mod inputs;
mod level_tensors;

use std::marker::PhantomData;

use msdeform::OffsetOptions;

use crate::boxed::{Arguments, Kernel};
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{List, Tensor};
use inputs::{Asked, Inputs};

pub use level_tensors::LevelTensors;

/// The output of an operator that reads so many tensors, with its levels given as `L`.
pub struct Forward<const TENSORS: usize, L>(PhantomData<L>);
/// The gradients of that operator.
pub struct Backward<const TENSORS: usize, L>(PhantomData<L>);

/// The arguments of a schema that describe the levels.
pub trait Levels<const TENSORS: usize>: Sized {
    /// How many they are.
    const ARGUMENTS: usize;

    /// Takes them.
    fn take(arguments: &mut Arguments<'_>) -> Self;

    /// Four numbers for each level.
    fn read(
        self,
        torch: &'static Libtorch,
        inputs: &Inputs<TENSORS>,
    ) -> Result<Vec<i64>, CallError>;
}

impl<const TENSORS: usize> Levels<TENSORS> for List {
    const ARGUMENTS: usize = 1;

    fn take(arguments: &mut Arguments<'_>) -> Self {
        arguments.list()
    }

    fn read(self, _: &'static Libtorch, _: &Inputs<TENSORS>) -> Result<Vec<i64>, CallError> {
        self.numbers()
    }
}

/// Tensors, levels and the rule of offsets, which a schema has for the operator with four tensors.
struct Call<const TENSORS: usize, L> {
    inputs: Inputs<TENSORS>,
    levels: L,
    rule: Option<OffsetOptions>,
}

impl<const TENSORS: usize, L: Levels<TENSORS>> Call<TENSORS, L> {
    const ARGUMENTS: usize =
        TENSORS + L::ARGUMENTS + if Inputs::<TENSORS>::FROM_OFFSETS { 4 } else { 0 };

    fn take(arguments: &mut Arguments<'_>) -> Self {
        let (inputs, levels) = (Inputs::take(arguments), L::take(arguments));
        let rule = Inputs::<TENSORS>::FROM_OFFSETS.then(|| take_rule(arguments));
        Self { inputs, levels, rule }
    }
}

impl<const TENSORS: usize, L: Levels<TENSORS>> Kernel for Forward<TENSORS, L> {
    const ARGUMENTS: usize = Call::<TENSORS, L>::ARGUMENTS + 1;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let Call { inputs, levels, rule } = Call::<TENSORS, L>::take(arguments);
        // An output is bitwise reproducible whether that is wanted or not.
        let _deterministic = arguments.flag();
        let levels = levels.read(arguments.torch(), &inputs)?;
        Ok(vec![inputs.forward(arguments.torch(), &levels, rule)?])
    }
}

impl<const TENSORS: usize, L: Levels<TENSORS>> Kernel for Backward<TENSORS, L> {
    const ARGUMENTS: usize = Call::<TENSORS, L>::ARGUMENTS + 3;
    const RESULTS: usize = TENSORS;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let Call { inputs, levels, rule } = Call::<TENSORS, L>::take(arguments);
        let (wanted, deterministic) = (arguments.list(), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        let asked = Asked { wanted: wanted.flags()?, deterministic };
        inputs.backward(arguments.torch(), grad_output, &levels, rule, asked)
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
