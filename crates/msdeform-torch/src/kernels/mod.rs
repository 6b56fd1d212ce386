//! The kernels that PyTorch's dispatcher calls. A kernel computes where its tensors are, on the CPU or on a GPU.

mod inputs;

use std::marker::PhantomData;

use msdeform::{LevelLists, OffsetOptions, Operator, Role, ValueLayout};

use crate::boxed::{Arguments, Kernel};
use crate::call::Place;
use crate::cuda;
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{List, Tensor};
use inputs::Inputs;

/// The output of an operator, by its place in [`Operator::ALL`], with its levels given as `L`.
pub struct Forward<const OPERATOR: usize, L>(PhantomData<L>);
/// The gradients of that operator.
pub struct Backward<const OPERATOR: usize, L>(PhantomData<L>);

/// The arguments of a schema that describe the levels.
pub trait Levels: Sized {
    /// How many they are.
    const ARGUMENTS: usize;
    /// In a schema.
    const SCHEMA: &str;

    /// Takes them.
    fn take(arguments: &mut Arguments<'_>) -> Self;

    /// Four numbers for each level.
    fn read(self, torch: &'static Libtorch, inputs: &Inputs) -> Result<Vec<i64>, CallError>;
}

impl Levels for List {
    const ARGUMENTS: usize = 1;
    const SCHEMA: &str = "SymInt[] levels";

    fn take(arguments: &mut Arguments<'_>) -> Self {
        arguments.object()
    }

    fn read(self, _: &'static Libtorch, _: &Inputs) -> Result<Vec<i64>, CallError> {
        self.numbers()
    }
}

/// Arguments of a schema for the options of an operator: four for one that reads references, else none.
pub const fn option_arguments(operator: &Operator) -> usize {
    if matches!(operator.inputs[1], Role::References) { 4 } else { 0 }
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
        let tensors = Self::READS.inputs.iter().map(|_| arguments.object()).collect();
        let levels = L::take(arguments);
        let rule = (Self::OPTIONS > 0).then(|| take_options(arguments));
        Self { inputs: Inputs { operator: Self::READS, tensors, rule }, levels }
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
        let grad_output = arguments.object();
        let Call { inputs, levels } = Call::<OPERATOR, L>::take(arguments);
        let (wanted, deterministic): (List, _) = (arguments.object(), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        inputs.backward(arguments.torch(), grad_output, &levels, (&wanted.flags()?, deterministic))
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

/// Levels as tensors.
pub struct LevelTensors {
    shapes: Tensor,
    starts: Option<Tensor>,
    points: Option<List>,
}

impl Levels for LevelTensors {
    const ARGUMENTS: usize = 3;
    const SCHEMA: &str = "Tensor spatial_shapes, Tensor? level_start_index, SymInt[]? points";

    fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            shapes: arguments.object(),
            starts: arguments.optional(),
            points: arguments.optional(),
        }
    }

    fn read(self, torch: &'static Libtorch, inputs: &Inputs) -> Result<Vec<i64>, CallError> {
        let (shape, shapes) = read_integers(self.shapes, torch, "spatial_shapes")?;
        let (&[_, 2], pairs) = (shape.as_slice(), shapes.as_chunks::<2>().0) else {
            return Err(CallError::Levels(format!(
                "`spatial_shapes` has shape {shape:?}, expected [levels, 2]: one (height, width) per level"
            )));
        };
        let starts = self.starts.map(|starts| read_integers(starts, torch, "level_start_index"));
        let starts = starts.transpose()?.map(|(_, starts)| starts);
        let points = self.points.map(|points| points.numbers()).transpose()?;
        let lists =
            LevelLists { sizes: pairs, starts: starts.as_deref(), points: points.as_deref() };
        // A value of another shape is refused with the problem.
        let pixels = inputs.tensors[0].shape()?.get(1).copied().unwrap_or(0);
        let at = inputs.tensors.len() - 2;
        let positions = (inputs.operator.inputs[at], inputs.tensors[at].shape()?);
        let levels = lists.complete((pixels, ValueLayout::Interleaved), positions)?;
        Ok(levels.into_flattened())
    }
}

/// Shape and numbers of a small tensor. On a GPU that waits for it.
fn read_integers(
    tensor: Tensor,
    torch: &'static Libtorch,
    name: &'static str,
) -> Result<(Vec<i64>, Vec<i64>), CallError> {
    if let Ok(Place::Gpu(ordinal)) = tensor.place() {
        refuse_capture(torch, ordinal, || {
            format!(
                "`{name}` is on the GPU and a CUDA graph is being captured: reading it would have to wait for the GPU, \
                 which a capture cannot. Pass `{name}` as a list or as a CPU tensor"
            )
        })?;
    }
    tensor.integers(torch, name)
}

/// Fails with this message if a CUDA graph is being captured on the GPU: reading from the GPU would have to wait.
fn refuse_capture(
    torch: &Libtorch,
    ordinal: i32,
    message: impl FnOnce() -> String,
) -> Result<(), CallError> {
    let stream = torch.current_stream(ordinal)?;
    let gpu = usize::try_from(ordinal).map_err(|_| CallError::Size(ordinal.to_string()))?;
    // SAFETY: PyTorch's current stream on that GPU.
    if unsafe { cuda::is_capturing(gpu, stream) }? {
        return Err(CallError::Capture(message()));
    }
    Ok(())
}
