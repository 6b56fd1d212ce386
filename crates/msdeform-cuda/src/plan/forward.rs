//! Forward plans.

use msdeform::{Element, Problem, VariantSpec};

use super::{
    BufferCheck, Gate, PlanOptions, PlannedKernel, Prepared, Role, Start, Tensor, check_dtype,
    element_bytes, level_table,
};
use crate::dispatch;
use crate::driver::{DeviceBuffer, LaunchGeometry, Stream};
use crate::engine::Engine;
use crate::error::Result;
use crate::nvrtc::KernelResources;
use crate::params::{ForwardParams, LevelGeometry};
use crate::pipeline::Region;
use crate::variants::Configuration;

/// The tensors of a forward call, in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePointers {
    /// In the problem's layout, or with the plan's strides.
    pub value: u64,
    /// `[N, Lq, M, samples, 2]`.
    pub locations: u64,
    /// `[N, Lq, M, samples]`.
    pub weights: u64,
    /// `[N, Lq, M * D]`.
    pub output: u64,
}

/// A forward call, ready to be launched any number of times, from any thread, on any stream of its
/// device. Launching allocates nothing, waits for nothing, takes no lock, and can be captured in a
/// graph. (A variant with a workspace, which only the ladder has, takes one launch at a time.)
///
/// A plan belongs to one problem. Making one for another image size, batch or number of queries
/// compiles nothing: it takes microseconds.
#[derive(Debug)]
pub struct ForwardPlan {
    gate: Gate,
    problem: Problem,
    extents: Extents,
    main: Option<Prepared<ForwardParams>>,
    /// Takes over where pointers are not aligned as `main` needs them.
    unaligned: Option<Prepared<ForwardParams>>,
    /// What the pipeline's steps share. Only variants of the laboratory have one: launches of such a plan
    /// must not overlap.
    workspace: Option<DeviceBuffer<u8>>,
    /// Keeps `CallShape::level_table` alive.
    _level_table: Option<DeviceBuffer<LevelGeometry>>,
    spec: &'static VariantSpec,
}

/// Bytes of each tensor, from its pointer on.
#[derive(Clone, Copy, Debug)]
struct Extents {
    value: usize,
    locations: usize,
    weights: usize,
    output: usize,
}

impl ForwardPlan {
    /// Chooses, compiles and loads what the problem needs.
    ///
    /// # Errors
    /// A variant that was asked for and cannot do it, strides that make no sense, no NVRTC, or what
    /// compiler and driver say. Never for a valid problem that leaves the choice to the dispatcher.
    pub fn new(engine: &Engine, problem: &Problem, options: &PlanOptions) -> Result<Self> {
        let context = engine.context();
        let call = options.call(context, problem, None)?;
        let choices = options.choices(engine, &call)?;
        let (value_bytes, sampling_bytes) = element_bytes(problem);
        let mut plan = Self {
            gate: Gate::new(context, options.pointer_checks),
            problem: problem.clone(),
            extents: Extents {
                value: call.strides.extent(problem) * value_bytes,
                locations: problem.locations_len() * sampling_bytes,
                weights: problem.weights_len() * sampling_bytes,
                output: problem.output_len() * value_bytes,
            },
            main: None,
            unaligned: None,
            workspace: None,
            _level_table: None,
            spec: choices.sure.variant.spec(),
        };
        if call.is_empty() {
            return Ok(plan);
        }
        let level_table = level_table(context, problem)?;
        let table_address = level_table.as_ref().map_or(0, DeviceBuffer::address);
        let params = |configuration: &Configuration| {
            let mut params = configuration.forward_params(&call)?;
            params.shape.level_table = table_address;
            Ok(params)
        };
        let main = Prepared::best(engine, &choices, &call, params)?;
        plan.spec = main.spec;
        if main.needs_fallback(problem) {
            let (variant, knobs) = dispatch::unaligned(&call);
            plan.unaligned = Some(Prepared::new(engine, variant, &call, &knobs, params)?);
        }
        let workspace_bytes = main.configuration.pipeline.workspace_bytes;
        if workspace_bytes > 0 {
            plan.workspace = Some(DeviceBuffer::uninitialised(context, workspace_bytes)?);
        }
        plan.main = Some(main);
        plan._level_table = level_table;
        Ok(plan)
    }

    /// Queues the operator on the caller's stream.
    ///
    /// # Safety
    /// Each pointer leads to a tensor of the plan's problem that stays valid until the stream is
    /// done; nothing else writes to them meanwhile; the output overlaps no other tensor. What is
    /// recorded in a graph must hold for every replay.
    ///
    /// # Errors
    /// Before the launch: a null, misaligned or host pointer, another device's tensor or stream, an
    /// allocation that is too small, each by name. [`crate::Error::Launch`] with the variant's name if
    /// the driver refuses.
    pub unsafe fn launch(&self, stream: &Stream, pointers: DevicePointers) -> Result<()> {
        // SAFETY: as the caller says.
        unsafe { self.launch_from(stream, pointers, Start::Preparation) }
    }

    /// Queues what comes after the preparation: the steps whose results an earlier [`ForwardPlan::launch`]
    /// left behind. The same as a launch where [`ForwardPlan::has_preparation`] says no.
    ///
    /// # Safety
    /// As [`ForwardPlan::launch`]; a launch on the same stream came before, and inputs that the
    /// preparation looks at have not changed since.
    ///
    /// # Errors
    /// As [`ForwardPlan::launch`].
    pub unsafe fn launch_after_preparation(
        &self,
        stream: &Stream,
        pointers: DevicePointers,
    ) -> Result<()> {
        // SAFETY: as the caller says.
        unsafe { self.launch_from(stream, pointers, Start::Operator) }
    }

    /// # Safety
    /// As the two above.
    unsafe fn launch_from(
        &self,
        stream: &Stream,
        pointers: DevicePointers,
        start: Start,
    ) -> Result<()> {
        self.gate.check_stream(stream)?;
        let Some(main) = &self.main else { return Ok(()) };
        let tensors = self.tensors(&pointers);
        self.gate.check_tensors(&tensors)?;
        let prepared = match &self.unaligned {
            Some(unaligned) if !main.is_aligned(&tensors) => unaligned,
            _ => main,
        };
        let DevicePointers { value, locations, weights, output } = pointers;
        let workspace = self.workspace.as_ref().map_or(0, DeviceBuffer::address);
        let params =
            ForwardParams { value, locations, weights, output, workspace, ..prepared.params };
        let region = |region| match region {
            Region::Workspace { offset, bytes } => (workspace + offset as u64, bytes),
            // A forward pipeline has no such tensor.
            Region::GradValue => (0, 0),
        };
        let _entered = self.gate.context.enter()?;
        // SAFETY: the caller answers for the tensors, the plan owns the level table and the workspace.
        unsafe { prepared.queue(stream, &params, value, start, region) }
    }

    /// Queues the operator on buffers of this crate; their formats and sizes are checked.
    ///
    /// # Errors
    /// A format or size that is not the problem's, and as [`ForwardPlan::launch`].
    pub fn run<V: Element, S: Element>(
        &self,
        stream: &Stream,
        value: &DeviceBuffer<V>,
        locations: &DeviceBuffer<S>,
        weights: &DeviceBuffer<S>,
        output: &mut DeviceBuffer<V>,
    ) -> Result<()> {
        check_dtype("value", self.problem.dtype(), V::DTYPE)?;
        check_dtype("sampling_locations", self.problem.sampling_dtype(), S::DTYPE)?;
        self.gate.check_buffers([
            BufferCheck::new("value", self.extents.value, value),
            BufferCheck::new("sampling_locations", self.extents.locations, locations),
            BufferCheck::new("attention_weights", self.extents.weights, weights),
            BufferCheck::new("output", self.extents.output, output),
        ])?;
        let pointers = DevicePointers {
            value: value.address(),
            locations: locations.address(),
            weights: weights.address(),
            output: output.address(),
        };
        // SAFETY: sizes are checked above; freeing a buffer waits for the kernels that use it; the
        // output is exclusively borrowed and is an allocation of its own.
        unsafe { self.launch(stream, pointers) }
    }

    /// The problem it was made for.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Whether some steps leave something that another launch on the same inputs could use.
    #[must_use]
    pub fn has_preparation(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.configuration.pipeline.preparation > 0)
    }

    /// Bytes that the plan holds on the device for its steps.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        let textures = self.main.as_ref().map_or(0, Prepared::texture_bytes);
        self.workspace.as_ref().map_or(0, DeviceBuffer::bytes) + textures
    }

    /// The variant that was chosen.
    #[must_use]
    pub fn variant(&self) -> &'static VariantSpec {
        self.spec
    }

    /// How it is launched; `None` where the output is empty and nothing is.
    #[must_use]
    pub fn geometry(&self) -> Option<LaunchGeometry> {
        self.kernel().map(|kernel| kernel.geometry)
    }

    /// The knobs it was compiled with.
    #[must_use]
    pub fn knobs(&self) -> &[(&'static str, i64)] {
        self.main.as_ref().map_or(&[], |main| &main.configuration.knobs)
    }

    /// What the kernel takes; `None` where nothing is launched.
    #[must_use]
    pub fn resources(&self) -> Option<KernelResources> {
        self.kernel().map(|kernel| kernel.resources)
    }

    fn kernel(&self) -> Option<PlannedKernel<'_>> {
        self.main.as_ref().and_then(|main| main.kernels().next())
    }

    fn tensors(&self, pointers: &DevicePointers) -> [Tensor; 4] {
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
        [
            of_value("value", pointers.value, self.extents.value),
            of_sampling("sampling_locations", pointers.locations, self.extents.locations),
            of_sampling("attention_weights", pointers.weights, self.extents.weights),
            of_value("output", pointers.output, self.extents.output),
        ]
    }
}
