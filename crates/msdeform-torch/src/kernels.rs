//! The kernels of the processor, between PyTorch's tensors and the addresses that `cpu` takes.

use msdeform::{Direction, Role};
use msdeform_cuda::Pointers;

use crate::boxed::{Arguments, Kernel};
use crate::call::{Head, Rule, with_key};
use crate::cpu::{self, SourceStrides};
use crate::error::CallError;
use crate::levels::Given;
use crate::libtorch::Libtorch;
use crate::tensor::{List, Tensor, check_dense, check_formats};

/// Value, locations and weights.
const NAMES: [&str; 3] = ["value", "sampling_locations", "attention_weights"];
/// Value, references, offsets and logits.
const SOURCE_NAMES: [&str; 4] =
    ["value", "reference_points", "sampling_offsets", "attention_logits"];
const SAMPLING: &str = "[batch, queries, heads, levels, points, 2]";

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
        let inputs = Inputs::take(arguments);
        // The last one asks for the same bits in every run, which the processor's are.
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
        let (levels, wanted, _deterministic) =
            (arguments.list(), arguments.list(), arguments.flag());
        inputs.backward(arguments.torch(), grad_output, &levels.numbers()?, wanted.flags()?)
    }
}

impl Kernel for BackwardReading {
    const ARGUMENTS: usize = 9;
    const RESULTS: usize = 3;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let inputs = Inputs::take(arguments);
        let levels = LevelTensors::take(arguments);
        let (wanted, _deterministic) = (arguments.list(), arguments.flag());
        let levels = levels.read(arguments.torch(), &inputs)?;
        inputs.backward(arguments.torch(), grad_output, &levels, wanted.flags()?)
    }
}

impl Kernel for FromOffsets {
    const ARGUMENTS: usize = 10;
    const RESULTS: usize = 1;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let source = Source::take(arguments);
        let (levels, rule) = (arguments.list(), take_rule(arguments));
        let _deterministic = arguments.flag();
        let (torch, source) = (arguments.torch(), source.prepared()?);
        let output = Tensor::empty(torch, &source.output_shape()?, source.value.format()?)?;
        let pointers = source.pointers()?.with(Role::Output, output.address()?);
        source.run(torch, Direction::Forward, &levels.numbers()?, rule, &pointers)?;
        Ok(vec![output])
    }
}

impl Kernel for FromOffsetsBackward {
    const ARGUMENTS: usize = 12;
    const RESULTS: usize = 4;

    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError> {
        let grad_output = arguments.tensor();
        let source = Source::take(arguments);
        let (levels, rule, wanted) = (arguments.list(), take_rule(arguments), arguments.list());
        let _deterministic = arguments.flag();
        let torch = arguments.torch();
        check_dense(&[("grad_output", &grad_output)])?;
        let (source, wanted) = (source.prepared()?, wanted.flags::<4>()?);
        check_gradient(&grad_output, &source.value, &source.output_shape()?)?;
        let grad_output = grad_output.contiguous()?;
        let gradients = gradients_of(torch, source.tensors(), wanted)?;
        let mut pointers = source.pointers()?.with(Role::GradOutput, grad_output.address()?);
        let roles = [Role::GradValue, Role::GradReferences, Role::GradOffsets, Role::GradLogits];
        for ((role, gradient), is_wanted) in roles.into_iter().zip(&gradients).zip(wanted) {
            pointers = pointers.with(role, address_if(is_wanted, gradient)?);
        }
        source.run(torch, Direction::Backward, &levels.numbers()?, rule, &pointers)?;
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

/// A tensor like each: of its shape if it is wanted, else empty.
fn gradients_of<const COUNT: usize>(
    torch: &'static Libtorch,
    tensors: [&Tensor; COUNT],
    wanted: [bool; COUNT],
) -> Result<Vec<Tensor>, CallError> {
    let gradient = |(tensor, is_wanted): (&Tensor, bool)| {
        let shape = if is_wanted { tensor.shape()? } else { &[0] };
        Tensor::empty(torch, shape, tensor.format()?)
    };
    tensors.into_iter().zip(wanted).map(gradient).collect()
}

/// What says that nobody wants it is 0.
fn address_if(is_wanted: bool, gradient: &Tensor) -> Result<u64, CallError> {
    if is_wanted { gradient.address() } else { Ok(0) }
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

/// What the plain operator reads.
struct Inputs {
    value: Tensor,
    locations: Tensor,
    weights: Tensor,
}

impl Inputs {
    fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            value: arguments.tensor(),
            locations: arguments.tensor(),
            weights: arguments.tensor(),
        }
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

    /// As the kernels read them.
    fn prepared(self) -> Result<Self, CallError> {
        check_dense(&self.named())?;
        check_formats(&self.named())?;
        Ok(Self {
            value: self.value.contiguous()?,
            locations: self.locations.contiguous()?,
            weights: self.weights.contiguous()?,
        })
    }

    fn pointers(&self) -> Result<Pointers, CallError> {
        Ok(Pointers::from([
            (Role::Value, self.value.address()?),
            (Role::Locations, self.locations.address()?),
            (Role::Weights, self.weights.address()?),
        ]))
    }

    fn run(
        &self,
        torch: &Libtorch,
        direction: Direction,
        levels: &[i64],
        pointers: &Pointers,
    ) -> Result<(), CallError> {
        let head = Head { place: threads(torch)?, ..Head::default() };
        with_key(head, &[&self.value, &self.locations, &self.weights], levels, |key| {
            // SAFETY: addresses and shapes come from the same live tensors, which were made contiguous; what is written
            // was made for this call.
            unsafe { cpu::run(direction, key, pointers) }
        })
    }

    fn forward(self, torch: &'static Libtorch, levels: &[i64]) -> Result<Tensor, CallError> {
        let inputs = self.prepared()?;
        let output = Tensor::empty(torch, &inputs.output_shape()?, inputs.value.format()?)?;
        let pointers = inputs.pointers()?.with(Role::Output, output.address()?);
        inputs.run(torch, Direction::Forward, levels, &pointers)?;
        Ok(output)
    }

    fn backward(
        self,
        torch: &'static Libtorch,
        grad_output: Tensor,
        levels: &[i64],
        wanted: [bool; 3],
    ) -> Result<Vec<Tensor>, CallError> {
        let [value, locations, weights] = self.named();
        check_dense(&[("grad_output", &grad_output), value, locations, weights])?;
        check_gradient(&grad_output, &self.value, &self.output_shape()?)?;
        let (inputs, grad_output) = (self.prepared()?, grad_output.contiguous()?);
        let tensors = [&inputs.value, &inputs.locations, &inputs.weights];
        let gradients = gradients_of(torch, tensors, wanted)?;
        let mut pointers = inputs.pointers()?.with(Role::GradOutput, grad_output.address()?);
        let roles = [Role::GradValue, Role::GradLocations, Role::GradWeights];
        for ((role, gradient), is_wanted) in roles.into_iter().zip(&gradients).zip(wanted) {
            pointers = pointers.with(role, address_if(is_wanted, gradient)?);
        }
        inputs.run(torch, Direction::Backward, levels, &pointers)?;
        Ok(gradients)
    }
}

/// Levels as tensors.
struct LevelTensors {
    shapes: Tensor,
    starts: Option<Tensor>,
    points: Option<List>,
}

impl LevelTensors {
    fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            shapes: arguments.tensor(),
            starts: arguments.optional_tensor(),
            points: arguments.optional_list(),
        }
    }

    fn read(self, torch: &'static Libtorch, inputs: &Inputs) -> Result<Vec<i64>, CallError> {
        let (shape, shapes) = self.shapes.integers(torch, "spatial_shapes")?;
        let (&[_, 2], pairs) = (shape.as_slice(), shapes.as_chunks::<2>().0) else {
            return Err(CallError::Levels(format!(
                "`spatial_shapes` has shape {shape:?}, expected [levels, 2]: one (height, width) per level"
            )));
        };
        let starts = self.starts.map(|starts| starts.integers(torch, "level_start_index"));
        let starts = starts.transpose()?.map(|(_, starts)| starts);
        let points = self.points.map(|points| points.numbers()).transpose()?;
        Given { shapes: pairs, starts: starts.as_deref(), points: points.as_deref() }
            .flatten(inputs.value.shape()?, inputs.locations.shape()?)
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

/// What the operator from offsets reads.
struct Source {
    value: Tensor,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
}

impl Source {
    fn take(arguments: &mut Arguments<'_>) -> Self {
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

    fn check(&self) -> Result<(), CallError> {
        let tensors = self.tensors();
        let named: [_; 4] = std::array::from_fn(|at| (SOURCE_NAMES[at], tensors[at]));
        check_dense(&named)?;
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

    /// As the kernels read them: images and queries may have any strides.
    fn prepared(self) -> Result<Self, CallError> {
        self.check()?;
        Ok(Self {
            value: self.value.contiguous()?,
            references: self.references.with_free_axes(3)?,
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

    fn run(
        &self,
        torch: &Libtorch,
        direction: Direction,
        levels: &[i64],
        rule: Rule,
        pointers: &Pointers,
    ) -> Result<(), CallError> {
        let head = Head { place: threads(torch)?, rule: Some(rule), ..Head::default() };
        let strides = self.strides()?;
        let [value, references, offsets, logits] = self.tensors();
        with_key(head, &[value, references, offsets, logits], levels, |key| {
            // SAFETY: addresses, shapes and strides come from the same live tensors; what is written was made for this call.
            unsafe { cpu::run_from_offsets(direction, key, pointers, &strides) }
        })
    }
}
