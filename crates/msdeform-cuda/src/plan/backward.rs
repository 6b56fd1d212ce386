//! Backward plans.

use msdeform::{Element, Mode, Problem, VariantSpec};

use super::{
    BufferCheck, Gate, PlanOptions, PlannedKernel, Prepared, Role, Start, Tensor, check_dtype,
    element_bytes, level_table,
};
use crate::dispatch;
use crate::driver::{DeviceBuffer, Event, Stream, zero_bytes};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gradients::Gradients;
use crate::params::{BackwardParams, LevelGeometry};
use crate::pipeline::{Region, WORKSPACE_ALIGNMENT};
use crate::strides::OutputStrides;
use crate::variants::{BackwardCall, Configuration};

/// Whose memory the steps of a backward pass share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workspace {
    /// The plan's own, allocated when it is made. One launch at a time then: launches on one stream
    /// follow each other anyway, those on several need a plan each, or workspaces of the caller.
    #[default]
    OfPlan,
    /// The caller's, given with every launch: [`BackwardPlan::workspace_bytes`] bytes at a multiple of
    /// [`WORKSPACE_ALIGNMENT`].
    OfCaller,
}

/// What a caller may decide about a backward plan.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// What forward plans have too.
    pub plan: PlanOptions,
    /// Which gradients are computed; all of them unless said.
    pub gradients: Gradients,
    /// What is promised about their last bits.
    pub mode: Mode,
    /// Strides of the gradient of the output, if it is not contiguous.
    pub grad_output_strides: Option<OutputStrides>,
    /// Whose workspace is used.
    pub workspace: Workspace,
}

/// The tensors of a backward call, in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardPointers {
    /// In the problem's layout, or with the plan's strides.
    pub value: u64,
    /// `[N, Lq, M, samples, 2]`.
    pub locations: u64,
    /// `[N, Lq, M, samples]`.
    pub weights: u64,
    /// `[N, Lq, M * D]`, or with the plan's strides.
    pub grad_output: u64,
    /// Written, packed in the problem's layout; ignored unless the plan computes it.
    pub grad_value: u64,
    /// Written, like the locations; ignored unless the plan computes it.
    pub grad_locations: u64,
    /// Written, like the weights; ignored unless the plan computes it.
    pub grad_weights: u64,
    /// [`Workspace::OfCaller`]: the workspace. Ignored otherwise.
    pub workspace: u64,
}

/// The inputs of a backward call in buffers of this crate.
#[derive(Clone, Copy, Debug)]
pub struct BackwardInputs<'a, V, S> {
    /// As [`BackwardPointers::value`].
    pub value: &'a DeviceBuffer<V>,
    /// As [`BackwardPointers::locations`].
    pub locations: &'a DeviceBuffer<S>,
    /// As [`BackwardPointers::weights`].
    pub weights: &'a DeviceBuffer<S>,
    /// As [`BackwardPointers::grad_output`].
    pub grad_output: &'a DeviceBuffer<V>,
}

/// Where the gradients go, in buffers of this crate. Those the plan does not compute are left alone.
#[derive(Debug)]
pub struct GradientBuffers<'a, V, S> {
    /// As [`BackwardPointers::grad_value`].
    pub value: Option<&'a mut DeviceBuffer<V>>,
    /// As [`BackwardPointers::grad_locations`].
    pub locations: Option<&'a mut DeviceBuffer<S>>,
    /// As [`BackwardPointers::grad_weights`].
    pub weights: Option<&'a mut DeviceBuffer<S>>,
}

/// A backward call, ready to be launched any number of times on any stream of its device. Launching
/// allocates nothing, waits for nothing, takes no lock, and can be captured in a graph.
///
/// A plan belongs to one problem and one set of gradients; only those are computed. Every element of
/// them is written: nothing has to be zeroed before. With a workspace of the caller launches may come
/// from several threads and run side by side; with the plan's own they must follow each other.
#[derive(Debug)]
pub struct BackwardPlan {
    gate: Gate,
    problem: Problem,
    gradients: Gradients,
    extents: Extents,
    main: Option<Prepared<BackwardParams>>,
    /// Takes over where pointers are not aligned as `main` needs them.
    unaligned: Option<Prepared<BackwardParams>>,
    /// Keeps `CallShape::level_table` alive.
    _level_table: Option<DeviceBuffer<LevelGeometry>>,
    owner: Workspace,
    workspace_bytes: usize,
    /// Only where it belongs to the plan and there is one.
    workspace: Option<OwnWorkspace>,
    spec: &'static VariantSpec,
}

#[derive(Debug)]
struct OwnWorkspace {
    memory: DeviceBuffer<u8>,
    /// When the last [`BackwardPlan::run`] is done with it.
    free: Event,
}

/// Bytes of each tensor, from its pointer on; 0 for a gradient that is not computed.
#[derive(Clone, Copy, Debug)]
struct Extents {
    value: usize,
    locations: usize,
    weights: usize,
    grad_output: usize,
    grad_value: usize,
    grad_locations: usize,
    grad_weights: usize,
}

impl BackwardPlan {
    /// Chooses, compiles and loads what the problem needs, and allocates the plan's workspace.
    ///
    /// # Errors
    /// A variant that was asked for and cannot do it, strides that make no sense, no NVRTC, no room for
    /// the workspace, or what compiler and driver say. Never for a valid problem that leaves the choice
    /// to the dispatcher, as long as there is memory.
    pub fn new(engine: &Engine, problem: &Problem, options: &BackwardOptions) -> Result<Self> {
        let context = engine.context();
        let gradients = options.gradients;
        let packed = || OutputStrides::packed(problem);
        let grad_output = options.grad_output_strides.unwrap_or_else(packed);
        grad_output.check(problem)?;
        let backward = BackwardCall { gradients, mode: options.mode, grad_output };
        let call = options.plan.call(context, problem, Some(backward))?;
        let choices = options.plan.choices(engine, &call)?;
        let (value_bytes, sampling_bytes) = element_bytes(problem);
        let asked = |asked: bool, bytes: usize| if asked { bytes } else { 0 };
        let locations = problem.locations_len() * sampling_bytes;
        let weights = problem.weights_len() * sampling_bytes;
        let mut plan = Self {
            gate: Gate::new(context, options.plan.pointer_checks),
            problem: problem.clone(),
            gradients,
            extents: Extents {
                value: call.strides.extent(problem) * value_bytes,
                locations,
                weights,
                grad_output: grad_output.extent(problem) * value_bytes,
                grad_value: asked(gradients.value, problem.value_len() * value_bytes),
                grad_locations: asked(gradients.locations, locations),
                grad_weights: asked(gradients.weights, weights),
            },
            main: None,
            unaligned: None,
            _level_table: None,
            owner: options.workspace,
            workspace_bytes: 0,
            workspace: None,
            spec: choices.sure.variant.spec(),
        };
        if call.is_empty() || gradients.mask() == 0 {
            return Ok(plan);
        }
        let level_table = level_table(context, problem)?;
        let table_address = level_table.as_ref().map_or(0, DeviceBuffer::address);
        let params = |configuration: &Configuration| {
            let mut params = configuration.backward_params(&call)?;
            params.shape.level_table = table_address;
            Ok(params)
        };
        let main = Prepared::best(engine, &choices, &call, params)?;
        plan.spec = main.spec;
        if main.needs_fallback(problem) {
            let (variant, knobs) = dispatch::unaligned(&call);
            plan.unaligned = Some(Prepared::new(engine, variant, &call, &knobs, params)?);
        }
        let bytes =
            |prepared: &Prepared<BackwardParams>| prepared.configuration.pipeline.workspace_bytes;
        plan.workspace_bytes = bytes(&main).max(plan.unaligned.as_ref().map_or(0, bytes));
        if plan.owner == Workspace::OfPlan && plan.workspace_bytes > 0 {
            plan.workspace = Some(OwnWorkspace {
                memory: DeviceBuffer::uninitialised(context, plan.workspace_bytes)?,
                free: Event::new(context)?,
            });
        }
        plan.main = Some(main);
        plan._level_table = level_table;
        Ok(plan)
    }

    /// Queues the operator on the caller's stream.
    ///
    /// # Safety
    /// Each pointer leads to a tensor of the plan's problem that stays valid until the stream is
    /// done; nothing else writes to them meanwhile; no gradient and no workspace overlaps another
    /// tensor. A workspace, the plan's own included, is used by one launch at a time. What is recorded
    /// in a graph must hold for every replay.
    ///
    /// # Errors
    /// Before the launch: a null, misaligned or host pointer, another device's tensor or stream, an
    /// allocation that is too small, each by name. [`Error::Launch`] with the variant's name if the
    /// driver refuses.
    pub unsafe fn launch(&self, stream: &Stream, pointers: BackwardPointers) -> Result<()> {
        self.gate.check_stream(stream)?;
        let tensors = self.tensors(&pointers);
        let Some(main) = &self.main else {
            // SAFETY: as the caller promises.
            return unsafe { self.zero_gradients(stream, &tensors) };
        };
        self.gate.check_tensors(&tensors)?;
        let workspace = match &self.workspace {
            Some(own) => own.memory.address(),
            None => pointers.workspace,
        };
        if !workspace.is_multiple_of(WORKSPACE_ALIGNMENT as u64) {
            let alignment = WORKSPACE_ALIGNMENT;
            return Err(Error::MisalignedWorkspace { address: workspace, alignment });
        }
        let prepared = match &self.unaligned {
            Some(unaligned) if !main.is_aligned(&tensors) => unaligned,
            _ => main,
        };
        let asked = |asked: bool, address: u64| if asked { address } else { 0 };
        let params = BackwardParams {
            value: pointers.value,
            locations: pointers.locations,
            weights: pointers.weights,
            grad_output: pointers.grad_output,
            grad_value: asked(self.gradients.value, pointers.grad_value),
            grad_locations: asked(self.gradients.locations, pointers.grad_locations),
            grad_weights: asked(self.gradients.weights, pointers.grad_weights),
            workspace,
            ..prepared.params
        };
        let region = |region| match region {
            Region::GradValue => (params.grad_value, self.extents.grad_value),
            Region::Workspace { offset, bytes } => (workspace + offset as u64, bytes),
        };
        let _entered = self.gate.context.enter()?;
        // SAFETY: the caller answers for the tensors and the workspace, whose parts lie inside of it
        // (the pipeline reserved them); the plan owns the level table.
        unsafe { prepared.queue(stream, &params, params.value, Start::Preparation, region) }
    }

    /// Queues the operator on buffers of this crate; their formats and sizes are checked. Uses the
    /// plan's own workspace, after the run before, whichever stream that was on.
    ///
    /// # Errors
    /// A format or size that is not the problem's, a gradient without a buffer, a plan whose workspace
    /// is the caller's, and as [`BackwardPlan::launch`].
    pub fn run<V: Element, S: Element>(
        &mut self,
        stream: &Stream,
        inputs: BackwardInputs<'_, V, S>,
        gradients: GradientBuffers<'_, V, S>,
    ) -> Result<()> {
        check_dtype("value", self.problem.dtype(), V::DTYPE)?;
        check_dtype("sampling_locations", self.problem.sampling_dtype(), S::DTYPE)?;
        self.gate.check_stream(stream)?;
        let BackwardInputs { value, locations, weights, grad_output } = inputs;
        let extents = self.extents;
        self.gate.check_buffers([
            BufferCheck::new("value", extents.value, value),
            BufferCheck::new("sampling_locations", extents.locations, locations),
            BufferCheck::new("attention_weights", extents.weights, weights),
            BufferCheck::new("grad_output", extents.grad_output, grad_output),
        ])?;
        if let Some(buffer) = &gradients.value {
            let check = BufferCheck::new("grad_value", extents.grad_value, buffer);
            self.gate.check_buffers([check])?;
        }
        for (tensor, bytes, buffer) in [
            ("grad_sampling_locations", extents.grad_locations, &gradients.locations),
            ("grad_attention_weights", extents.grad_weights, &gradients.weights),
        ] {
            if let Some(buffer) = buffer {
                self.gate.check_buffers([BufferCheck::new(tensor, bytes, buffer)])?;
            }
        }
        let pointers = BackwardPointers {
            value: value.address(),
            locations: locations.address(),
            weights: weights.address(),
            grad_output: grad_output.address(),
            grad_value: gradients.value.map_or(0, |buffer| buffer.address()),
            grad_locations: gradients.locations.map_or(0, |buffer| buffer.address()),
            grad_weights: gradients.weights.map_or(0, |buffer| buffer.address()),
            workspace: 0,
        };
        if let Some(own) = &self.workspace {
            stream.wait_for(&own.free)?;
        }
        // SAFETY: sizes are checked above, a missing gradient is a null pointer, which is refused; freeing
        // a buffer waits for the kernels that use it; gradients are exclusively borrowed and allocations
        // of their own; the run before is done with the workspace when this one starts.
        unsafe { self.launch(stream, pointers) }?;
        match &self.workspace {
            Some(own) => own.free.record(stream),
            None => Ok(()),
        }
    }

    /// The problem it was made for.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The gradients it computes.
    #[must_use]
    pub const fn gradients(&self) -> Gradients {
        self.gradients
    }

    /// The variant that was chosen.
    #[must_use]
    pub fn variant(&self) -> &'static VariantSpec {
        self.spec
    }

    /// Bytes of the workspace that a launch needs, whoever it belongs to.
    #[must_use]
    pub const fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The knobs it was compiled with.
    #[must_use]
    pub fn knobs(&self) -> &[(&'static str, i64)] {
        self.main.as_ref().map_or(&[], |main| &main.configuration.knobs)
    }

    /// Its kernels in the order they are launched; none where all gradients are zero.
    pub fn kernels(&self) -> impl Iterator<Item = PlannedKernel<'_>> {
        self.main.iter().flat_map(Prepared::kernels)
    }

    /// What an empty call leaves: zeros, where there is a gradient at all.
    ///
    /// # Safety
    /// As [`BackwardPlan::launch`].
    unsafe fn zero_gradients(&self, stream: &Stream, tensors: &[Tensor; 8]) -> Result<()> {
        let gradients = &tensors[GRADIENTS];
        self.gate.check_tensors(gradients)?;
        let _entered = self.gate.context.enter()?;
        for gradient in gradients.iter().filter(|gradient| gradient.bytes > 0) {
            // SAFETY: the caller answers for the tensor, which has this many bytes.
            unsafe { zero_bytes(stream, gradient.address, gradient.bytes) }
                .map_err(|source| Error::from(source).in_launch_of(self.spec.id))?;
        }
        Ok(())
    }

    fn tensors(&self, pointers: &BackwardPointers) -> [Tensor; 8] {
        let (value_bytes, sampling_bytes) = element_bytes(&self.problem);
        let of_value = |name, address, bytes| Tensor {
            name,
            address,
            bytes,
            element_bytes: value_bytes,
            role: Role::Value,
        };
        let of_sampling = |name, address, bytes| Tensor {
            element_bytes: sampling_bytes,
            role: Role::Sampling,
            ..of_value(name, address, bytes)
        };
        let Extents { value, locations, weights, grad_output, .. } = self.extents;
        let Extents { grad_value, grad_locations, grad_weights, .. } = self.extents;
        let workspace = match self.owner {
            Workspace::OfPlan => 0,
            Workspace::OfCaller => self.workspace_bytes,
        };
        [
            of_value("value", pointers.value, value),
            of_sampling("sampling_locations", pointers.locations, locations),
            of_sampling("attention_weights", pointers.weights, weights),
            of_value("grad_output", pointers.grad_output, grad_output),
            of_value("grad_value", pointers.grad_value, grad_value),
            of_sampling("grad_sampling_locations", pointers.grad_locations, grad_locations),
            of_sampling("grad_attention_weights", pointers.grad_weights, grad_weights),
            Tensor { element_bytes: 1, ..of_value("workspace", pointers.workspace, workspace) },
        ]
    }
}

/// Where [`BackwardPlan::tensors`] has the gradients.
const GRADIENTS: std::ops::Range<usize> = 4..7;
