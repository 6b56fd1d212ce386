//! A call, after its tensors were read.
//!
//! Every reader fills [`Described`] and calls [`Inputs::forward`] or [`Inputs::backward`]. What a reader cannot do itself,
//! such as allocating a workspace, is its [`Framework`].
//!
//! A plan is kept by the numbers that it depends on, shapes included. Known numbers were checked when their plan was made, so
//! a repeated call compares numbers and checks nothing again.

use std::borrow::Cow;
use std::cell::RefCell;

use msdeform::{
    ATTENTION, DType, Direction, FROM_OFFSETS, Gradients, LevelLists, OffsetOptions, OffsetRule,
    Operator, Problem, Role, Signature, TensorSignature,
};
use msdeform_cuda::Pointers;

use crate::error::CallError;
use crate::{cpu, cuda};

/// The device of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// The number of a GPU.
    Gpu(i32),
}

/// A tensor of a call, as its framework describes it.
#[derive(Clone, Debug)]
pub struct Described<'a> {
    /// Of the first element; 0 if the tensor has no memory.
    pub address: u64,
    pub dtype: DType,
    pub place: Place,
    pub shape: Cow<'a, [i64]>,
    /// In elements. Empty if all elements follow each other.
    pub strides: Cow<'a, [i64]>,
}

impl Described<'_> {
    /// 0 for an axis that the tensor does not have.
    pub fn stride(&self, axis: usize) -> i64 {
        self.strides.get(axis).copied().unwrap_or(0)
    }

    /// Whether only the first `free` axes have strides of their own.
    pub fn has_contiguous_rows(&self, free: usize) -> bool {
        self.strides.len() == self.shape.len()
            && are_contiguous_rows(&self.shape, &self.strides, free)
    }
}

pub(crate) fn are_contiguous_rows(shape: &[i64], strides: &[i64], free: usize) -> bool {
    let mut expected = 1_i64;
    shape.iter().zip(strides).skip(free).rev().all(|(&size, &stride)| {
        let follows = size == 1 || stride == expected;
        expected = expected.saturating_mul(size);
        follows
    })
}

/// What a call needs of the framework that its tensors belong to.
pub trait Framework {
    /// What a call fails with.
    type Error;
    /// Memory of a GPU, freed when it is dropped, in the order of the current stream.
    type Memory;

    fn error(error: CallError) -> Self::Error;

    /// How many threads the framework computes with on the CPU.
    fn threads(&self) -> Result<i64, Self::Error>;

    /// The current stream of a GPU.
    fn stream(&self, ordinal: i32) -> Result<usize, Self::Error>;

    /// So many bytes of a GPU, and their address.
    fn workspace(&self, ordinal: i32, bytes: usize) -> Result<(Self::Memory, u64), Self::Error>;

    /// Runs something without the interpreter, if there is one.
    fn detached<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T;
}

/// The tensors that an operator reads, in its order, on one device.
pub struct Inputs<'a> {
    /// As many as the operator reads.
    pub tensors: Vec<Described<'a>>,
    /// The options of the fused operator.
    pub rule: Option<OffsetOptions>,
}

impl<'a> Inputs<'a> {
    /// The operator that reads them: the fused one has options, the plain one has none.
    pub const fn operator(&self) -> &'static Operator {
        if self.rule.is_some() { &FROM_OFFSETS } else { &ATTENTION }
    }

    /// The input that has a position for every sample, in a call with as many tensors as the operator reads.
    pub fn positions(&self) -> Option<(Role, &Described<'a>)> {
        let at = self.tensors.len().checked_sub(2)?;
        Some((*self.operator().inputs.get(at)?, self.tensors.get(at)?))
    }

    /// `None` if a tensor has too few axes.
    pub fn output_shape(&self) -> Option<[i64; 3]> {
        match (&*self.tensors.first()?.shape, &*self.positions()?.1.shape) {
            (&[batch, _, heads, channels], &[_, queries, ..]) => {
                Some([batch, queries, heads.saturating_mul(channels)])
            }
            _ => None,
        }
    }

    /// The gradients of those inputs that are `wanted`.
    pub fn gradients(&self, wanted: impl IntoIterator<Item = bool>) -> Gradients {
        let each = self.operator().inputs.iter().zip(wanted);
        each.filter_map(|(role, is_wanted)| role.gradient().filter(|_| is_wanted)).collect()
    }

    /// Computes the output. `expected` are the gradients that will be wanted of the call: a GPU's kernels for them are
    /// compiled meanwhile.
    ///
    /// # Safety
    /// The tensors are live and contiguous but for their [free axes](Role::free_axes). No code writes to them until the call is done on
    /// the framework's stream. The address leads to memory for the output, which no other code uses.
    pub unsafe fn forward<F: Framework>(
        &self,
        framework: &F,
        levels: &[i64],
        (expected, deterministic): (Gradients, bool),
        output: u64,
    ) -> Result<(), F::Error> {
        let request = Request { expected, deterministic, ..Request::NONE };
        let pointers = self.pointers().with(Role::Output, output);
        // SAFETY: passed on from the caller.
        unsafe { self.run(framework, Direction::Forward, levels, request, &pointers) }
    }

    /// Computes the gradients that have an address, one for each input.
    ///
    /// # Safety
    /// As of [`Inputs::forward`]. On the CPU `grad_output` is contiguous too.
    pub unsafe fn backward<F: Framework>(
        &self,
        framework: &F,
        levels: &[i64],
        grad_output: &Described<'_>,
        gradients: &[Option<u64>],
        deterministic: bool,
    ) -> Result<(), F::Error> {
        let request = Request {
            gradients: self.gradients(gradients.iter().map(Option::is_some)),
            deterministic,
            grad_strides: [0, 1, 2].map(|axis| grad_output.stride(axis)),
            ..Request::NONE
        };
        let pointers = self.pointers().with(Role::GradOutput, grad_output.address);
        let each = self.operator().written(Direction::Backward).zip(gradients);
        let pointers = each.fold(pointers, |all, (role, at)| all.with(role, at.unwrap_or(0)));
        // SAFETY: passed on from the caller.
        unsafe { self.run(framework, Direction::Backward, levels, request, &pointers) }
    }

    fn pointers(&self) -> Pointers {
        let each = self.operator().inputs.iter().zip(&self.tensors);
        each.fold(Pointers::default(), |all, (&role, tensor)| all.with(role, tensor.address))
    }

    /// # Safety
    /// As of [`Inputs::forward`], for all pointers.
    unsafe fn run<F: Framework>(
        &self,
        framework: &F,
        direction: Direction,
        levels: &[i64],
        request: Request,
        pointers: &Pointers,
    ) -> Result<(), F::Error> {
        let call = |place, request| Call { inputs: self, levels, place, request };
        let Some(Place::Gpu(ordinal)) = self.tensors.first().map(|value| value.place) else {
            // A plan of the CPU computes any gradients of contiguous tensors.
            let call = call(framework.threads()?, Request::NONE);
            // SAFETY: passed on from the caller.
            let done = framework.detached(|| unsafe { cpu::run(direction, &call, pointers) });
            return done.map_err(F::error);
        };
        let call = call(ordinal.into(), request);
        let stream = framework.stream(ordinal)?;
        // Without a workspace the interpreter is given up once.
        let plan = framework.detached(|| {
            let plan = cuda::plan(&call)?;
            if plan.workspace_bytes() > 0 {
                return Ok(Some(plan));
            }
            // SAFETY: passed on from the caller; the stream is one of this GPU.
            unsafe { plan.launch(stream, pointers) }?;
            Ok(None)
        });
        let Some(plan) = plan.map_err(F::error)? else { return Ok(()) };
        // Held until the launch is queued.
        let (_memory, at) = framework.workspace(ordinal, plan.workspace_bytes())?;
        let pointers = pointers.with_workspace(at);
        // SAFETY: as above; the workspace has the bytes that the plan needs.
        let launched = framework.detached(|| unsafe { plan.launch(stream, &pointers) });
        launched.map_err(F::error)
    }
}

/// Gradients, as far as a plan depends on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Those that are wanted; none in a forward call.
    pub gradients: Gradients,
    /// Those that will be wanted of a forward call.
    pub expected: Gradients,
    /// Whether they must be bitwise reproducible.
    pub deterministic: bool,
    /// Strides of the gradient of the output.
    pub grad_strides: [i64; 3],
}

impl Request {
    const NONE: Self = Self {
        gradients: Gradients::NONE,
        expected: Gradients::NONE,
        deterministic: false,
        grad_strides: [0; 3],
    };
}

/// All that a plan depends on.
pub struct Call<'a> {
    pub(crate) inputs: &'a Inputs<'a>,
    /// Four numbers for each: height, width, start, points.
    pub(crate) levels: &'a [i64],
    /// Threads of the CPU, or the number of a GPU.
    pub(crate) place: i64,
    pub(crate) request: Request,
}

thread_local! {
    /// The numbers of the last call, written over by the next one: a repeated call allocates nothing.
    static NUMBERS: RefCell<Vec<i64>> = RefCell::default();
}

impl<'a> Call<'a> {
    /// A call on the CPU.
    pub fn on_cpu(inputs: &'a Inputs<'a>, levels: &'a [i64], threads: i64) -> Self {
        Self { inputs, levels, place: threads, request: Request::NONE }
    }

    /// Runs something with the numbers by which a plan is looked up. `run` may make another call: that writes into a
    /// vector of its own.
    pub(crate) fn with_numbers<T>(&self, run: impl FnOnce(&[i64]) -> T) -> T {
        let mut numbers = NUMBERS.take();
        self.encode(&mut numbers);
        let result = run(&numbers);
        NUMBERS.set(numbers);
        result
    }

    fn encode(&self, numbers: &mut Vec<i64>) {
        let Request { gradients, expected, deterministic, grad_strides } = self.request;
        let Inputs { tensors, rule } = self.inputs;
        numbers.clear();
        let [gradients, expected] = [gradients, expected].map(|each| each.mask().into());
        numbers.extend([self.place, gradients, expected, i64::from(deterministic)]);
        numbers.extend(grad_strides);
        numbers.extend(rule.as_ref().map_or([0; 4], rule_numbers));
        for (&role, tensor) in self.inputs.operator().inputs.iter().zip(tensors) {
            numbers.extend([tensor.dtype as i64, tensor.shape.len() as i64]);
            numbers.extend_from_slice(&tensor.shape);
            // Plans of the CPU take any strides.
            if matches!(tensor.place, Place::Gpu(_)) {
                numbers.extend((0..role.free_axes(false)).map(|axis| tensor.stride(axis)));
            }
        }
        numbers.extend_from_slice(self.levels);
    }

    /// The problem that tensors and levels describe.
    pub(crate) fn problem(&self) -> Result<Problem, CallError> {
        let signature = |tensor: &'a Described<'_>| TensorSignature {
            dtype: tensor.dtype,
            shape: &tensor.shape,
        };
        let tensors: Vec<_> = self.inputs.tensors.iter().map(signature).collect();
        let (levels, []) = self.levels.as_chunks::<LEVEL_NUMBERS>() else {
            return Err(CallError::LevelNumbers(self.levels.len()));
        };
        let sizes: Vec<_> = levels.iter().map(|&[height, width, ..]| [height, width]).collect();
        let starts: Vec<_> = levels.iter().map(|&[_, _, start, _]| start).collect();
        let points: Vec<_> = levels.iter().map(|&[.., points]| points).collect();
        let levels = LevelLists { sizes: &sizes, starts: Some(&starts), points: Some(&points) };
        let rule = self.inputs.rule.map(OffsetRule::OfReferences);
        Ok(Signature { rule, ..Signature::new(&tensors, levels) }.problem()?)
    }
}

fn rule_numbers(rule: &OffsetOptions) -> [i64; 4] {
    let [anchors, softmax, nearest] = [rule.anchors, rule.softmax, rule.nearest].map(i64::from);
    [1 + anchors, i64::from(rule.scale.to_bits()), softmax, nearest]
}

/// Numbers of one level.
pub const LEVEL_NUMBERS: usize = 4;
