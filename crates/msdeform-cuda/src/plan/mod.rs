//! Plans: everything about a call that does not change from launch to launch, worked out once.

mod gate;
mod loaded;
mod operands;
mod options;

use std::sync::{Mutex, OnceLock, PoisonError};

use msdeform::{Access, Problem, Role, VariantSpec};

use crate::dispatch;
use crate::driver::{Context, DeviceBuffer, Event, Stream, zero_bytes};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::params::{INLINE_LEVELS, LevelGeometry, level_geometry};
use crate::pipeline::WORKSPACE_ALIGNMENT;
use crate::variants::{Call, Configuration, Variant};
use gate::Gate;
use loaded::{Loaded, Start, Targets};
use operands::Operand;

pub use loaded::PlannedKernel;
pub use operands::{Argument, Pointers};
pub use options::{
    Ahead, BackwardOptions, OFFSETS_ARE_VERIFIED, PlanOptions, PointerChecks, Workspace,
};

/// A call of the operator in one direction, ready to be launched any number of times on any stream of its device.
/// Launching allocates nothing, waits for nothing, takes no lock, and can be captured in a graph.
///
/// A plan belongs to one problem; a backward plan to one set of gradients too, and only those are computed. Every element
/// of what is written is written: nothing has to be zeroed before. Making a plan for another image size, batch or number of
/// queries takes microseconds once the code is there.
///
/// Where a call needs a workspace (see [`Plan::workspace_bytes`]; forward calls do not, but for some of the ladder) and it
/// is the plan's own, launches must follow each other. With one of the caller, and where none is needed, they may come from
/// several threads and run side by side.
#[derive(Debug)]
pub struct Plan {
    gate: Gate,
    engine: Engine,
    problem: Problem,
    options: PlanOptions,
    operands: Vec<Operand>,
    /// What is launched; nothing where there is nothing to compute.
    main: Option<Loaded>,
    fallback: Option<Fallback>,
    /// Levels that do not fit the parameter, which points here.
    level_table: Option<DeviceBuffer<LevelGeometry>>,
    workspace_bytes: usize,
    /// Only where it belongs to the plan and there is one.
    workspace: Option<OwnWorkspace>,
    spec: &'static VariantSpec,
}

/// The variant for pointers that are less aligned than the plan's variant needs. Such pointers are rare, so the
/// fallback is compiled on the first launch that has them.
#[derive(Debug)]
struct Fallback {
    variant: &'static Variant,
    configuration: Configuration,
    made: OnceLock<Loaded>,
}

#[derive(Debug)]
struct OwnWorkspace {
    memory: DeviceBuffer<u8>,
    /// When the last [`Plan::run`] is done with the workspace. The next run holds the lock while it queues launches.
    free: Mutex<Event>,
}

impl Plan {
    /// A forward call; the dispatcher chooses the variant.
    pub fn forward(engine: &Engine, problem: &Problem) -> Result<Self> {
        Self::new(engine, problem, &PlanOptions::default())
    }

    /// All gradients, as fast as possible, with a workspace of the plan's own; the dispatcher chooses the variant.
    pub fn backward(engine: &Engine, problem: &Problem) -> Result<Self> {
        Self::new(engine, problem, &PlanOptions::backward(BackwardOptions::default()))
    }

    /// Chooses, compiles and loads what the problem needs, and allocates the plan's workspace.
    ///
    /// # Errors
    /// A variant that was asked for and cannot do it, strides that make no sense, no NVRTC, no room for
    /// the workspace, or what compiler and driver say. Never for a valid problem that leaves the choice
    /// to the dispatcher, as long as there is memory.
    pub fn new(engine: &Engine, problem: &Problem, options: &PlanOptions) -> Result<Self> {
        let context = engine.context();
        let call = options.call(context, problem)?;
        let choices = options.choices(engine, &call)?;
        let operands: Vec<Operand> = Operand::of(&call).collect();
        let mut plan = Self {
            gate: Gate::new(context, options.pointer_checks),
            engine: engine.clone(),
            problem: problem.clone(),
            options: options.clone(),
            main: None,
            fallback: None,
            level_table: None,
            workspace_bytes: 0,
            workspace: None,
            spec: choices.sure.variant.spec,
            operands,
        };
        let writes = |operand: &Operand| operand.access == Access::Write && operand.is_present;
        if call.is_empty() || !plan.operands.iter().any(writes) {
            return Ok(plan);
        }
        // First, so that these kernels compile while this plan waits for its own.
        options.compile_ahead(engine, &call, &choices);
        plan.level_table = level_table(engine, problem)?;
        let main = Loaded::best(engine, &choices, &call, plan.level_table_address())?;
        plan.spec = main.spec;
        plan.workspace_bytes = main.configuration.pipeline.workspace_bytes;
        if needs_fallback(&main.configuration, &plan.operands) {
            let fallback = Fallback::new(&call)?;
            let bytes = fallback.configuration.pipeline.workspace_bytes;
            plan.workspace_bytes = plan.workspace_bytes.max(bytes);
            plan.fallback = Some(fallback);
        }
        if options.workspace == Workspace::OfPlan && plan.workspace_bytes > 0 {
            plan.workspace = Some(OwnWorkspace {
                memory: DeviceBuffer::uninitialised(context, plan.workspace_bytes)?,
                free: Mutex::new(Event::new(context)?),
            });
        }
        plan.main = Some(main);
        Ok(plan)
    }

    /// Queues the operator on the caller's stream.
    ///
    /// # Safety
    /// Each pointer leads to a tensor of the plan's problem that stays valid until the stream is
    /// done; nothing else writes to them meanwhile; nothing that is written, and no workspace, overlaps another
    /// tensor. A workspace, the plan's own included, is used by one launch at a time. What is recorded
    /// in a graph must hold for every replay.
    ///
    /// # Errors
    /// Before the launch: a null, misaligned or host pointer, another device's tensor or stream, an
    /// allocation that is too small, each by name. [`Error::Launch`] with the variant's name if the
    /// driver refuses.
    pub unsafe fn launch(&self, stream: &Stream, pointers: &Pointers) -> Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.launch_from(stream, pointers, Start::Preparation) }
    }

    /// Queues what comes after the preparation: the steps whose results an earlier [`Plan::launch`]
    /// left behind. If [`Plan::has_preparation`] is false, this is the same as a launch.
    ///
    /// # Safety
    /// As [`Plan::launch`]; a launch on the same stream came before, and inputs that the
    /// preparation looks at have not changed since.
    pub unsafe fn launch_after_preparation(
        &self,
        stream: &Stream,
        pointers: &Pointers,
    ) -> Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.launch_from(stream, pointers, Start::Operator) }
    }

    /// # Safety
    /// As the two above.
    unsafe fn launch_from(&self, stream: &Stream, pointers: &Pointers, start: Start) -> Result<()> {
        self.gate.check_stream(stream)?;
        let Some(main) = &self.main else {
            // SAFETY: as the caller promises.
            return unsafe { self.leave_zeros(stream, pointers) };
        };
        self.gate.check_tensors(&self.operands, pointers)?;
        let workspace = self.workspace(pointers)?;
        let targets = Targets { operands: &self.operands, pointers, workspace };
        let queue = |prepared: &Loaded| {
            let _entered = self.gate.context().enter()?;
            // SAFETY: the caller answers for the tensors and the workspace, whose parts lie inside of it
            // (the pipeline reserved them); the plan owns the level table.
            unsafe { prepared.queue(stream, &targets, start) }
        };
        match &self.fallback {
            Some(fallback) if !self.is_aligned_for(&main.configuration, pointers) => {
                queue(self.fall_back(fallback, stream)?)
            }
            _ => queue(main),
        }
    }

    /// Queues the operator on buffers of this crate; their formats and sizes are checked. Tensors that the plan
    /// has no use for are left alone. The plan's own workspace is used after the run before, whichever stream and
    /// thread that was on.
    ///
    /// # Errors
    /// A format or size that is not the problem's, a buffer that is missing or may not be written, a plan whose
    /// workspace is the caller's, and as [`Plan::launch`].
    pub fn run<'a>(
        &self,
        stream: &Stream,
        arguments: impl IntoIterator<Item = Argument<'a>>,
    ) -> Result<()> {
        let mut pointers = Pointers::default();
        self.gate.check_stream(stream)?;
        for argument in arguments {
            let role = argument.role;
            if let Some(operand) = self.operands.iter().find(|operand| operand.role == role) {
                self.gate.check_argument(operand, &self.problem, &argument)?;
                pointers = pointers.with(role, argument.address);
            }
        }
        // A thread that panicked elsewhere left the event whole.
        let free = self.workspace.as_ref();
        let free = free.map(|own| own.free.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(free) = &free {
            stream.wait_for(free)?;
        }
        // SAFETY: sizes are checked above, a missing tensor is a null pointer, which is refused; freeing
        // a buffer waits for the kernels that use it; what is written is exclusively borrowed and allocations
        // of its own; the run before is done with the workspace when this one starts.
        unsafe { self.launch(stream, &pointers) }?;
        free.map_or(Ok(()), |free| free.record(stream))
    }

    /// The problem it was made for.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The context that its launches need a stream of.
    #[must_use]
    pub const fn context(&self) -> &Context {
        self.gate.context()
    }

    /// Bytes that a launch touches of a tensor, from its first element to one past its last. `None` if the call does not
    /// have the tensor; a gradient that was not requested is none of the call's.
    #[must_use]
    pub fn bytes_of(&self, role: Role) -> Option<usize> {
        let operand = self.operands.iter().find(|operand| operand.role == role);
        operand.filter(|operand| operand.is_present).map(|operand| operand.bytes)
    }

    /// The variant that was chosen.
    #[must_use]
    pub const fn variant(&self) -> &'static VariantSpec {
        self.spec
    }

    /// The knobs it was compiled with.
    #[must_use]
    pub fn knobs(&self) -> &[(&'static str, i64)] {
        self.main.as_ref().map_or(&[], |main| &main.configuration.knobs)
    }

    /// Its kernels in the order they are launched; none where there is nothing to compute.
    pub fn kernels(&self) -> impl Iterator<Item = PlannedKernel<'_>> {
        self.main.iter().flat_map(Loaded::kernels)
    }

    /// Whether some steps leave something that another launch on the same inputs could use.
    #[must_use]
    pub fn has_preparation(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.configuration.pipeline.preparation > 0)
    }

    /// Bytes of workspace that a launch needs, from the plan or from the caller.
    #[must_use]
    pub const fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Bytes of device memory that are the plan's own: its workspace, levels, what its variant prepares.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        let workspace = self.workspace.as_ref().map_or(0, |own| own.memory.bytes());
        let levels = self.level_table.as_ref().map_or(0, DeviceBuffer::bytes);
        workspace + levels + self.main.as_ref().map_or(0, Loaded::device_bytes)
    }

    fn level_table_address(&self) -> u64 {
        self.level_table.as_ref().map_or(0, DeviceBuffer::address)
    }

    fn is_aligned_for(&self, configuration: &Configuration, pointers: &Pointers) -> bool {
        self.operands.iter().filter(|operand| operand.bytes > 0).all(|operand| {
            let alignment = configuration.alignment(operand.role.storage());
            pointers.get(operand.role).is_multiple_of(alignment as u64)
        })
    }

    /// Code cannot be loaded in the middle of a recording: the driver would end it.
    fn fall_back<'a>(&self, fallback: &'a Fallback, stream: &Stream) -> Result<&'a Loaded> {
        if let Some(made) = fallback.made.get() {
            return Ok(made);
        }
        if stream.is_capturing()? {
            return Err(Error::UncompiledInCapture { variant: fallback.variant.spec.id });
        }
        let call = self.options.call(self.gate.context(), &self.problem)?;
        let (configuration, table) = (fallback.configuration.clone(), self.level_table_address());
        let made = Loaded::new(&self.engine, fallback.variant, &call, configuration, table)?;
        Ok(fallback.made.get_or_init(|| made))
    }

    fn workspace(&self, pointers: &Pointers) -> Result<u64> {
        let address = match &self.workspace {
            Some(own) => own.memory.address(),
            None if self.workspace_bytes == 0 => 0,
            None => self.gate.check_workspace(pointers.workspace(), self.workspace_bytes)?,
        };
        if !address.is_multiple_of(WORKSPACE_ALIGNMENT as u64) {
            return Err(Error::MisalignedWorkspace { address, alignment: WORKSPACE_ALIGNMENT });
        }
        Ok(address)
    }

    /// What a call without anything to compute leaves behind.
    ///
    /// # Safety
    /// As [`Plan::launch`].
    unsafe fn leave_zeros(&self, stream: &Stream, pointers: &Pointers) -> Result<()> {
        let written: Vec<Operand> = self
            .operands
            .iter()
            .filter(|operand| operand.access == Access::Write)
            .copied()
            .collect();
        self.gate.check_tensors(&written, pointers)?;
        let _entered = self.gate.context().enter()?;
        for Operand { role, bytes, .. } in written {
            // SAFETY: the caller answers for the tensor, which has this many bytes.
            unsafe { zero_bytes(stream, pointers.get(role), bytes) }
                .map_err(|source| Error::from(source).in_launch_of(self.spec.id))?;
        }
        Ok(())
    }
}

impl Fallback {
    fn new(call: &Call<'_>) -> Result<Self> {
        let (variant, knobs) = dispatch::unaligned(call);
        let configuration =
            variant.configure(call, &knobs).map_err(|reason| variant.refusal(reason))?;
        Ok(Self { variant, configuration, made: OnceLock::new() })
    }
}

/// Whether some pointers are aligned for their elements and not for this.
fn needs_fallback(configuration: &Configuration, operands: &[Operand]) -> bool {
    operands
        .iter()
        .any(|operand| configuration.alignment(operand.role.storage()) > operand.element_bytes)
}

/// Levels that do not fit the parameter, in device memory.
fn level_table(engine: &Engine, problem: &Problem) -> Result<Option<DeviceBuffer<LevelGeometry>>> {
    if problem.levels().len() <= INLINE_LEVELS {
        return Ok(None);
    }
    let stream = Stream::new(engine.context())?;
    Ok(Some(DeviceBuffer::from_host(&stream, &level_geometry(problem)?)?))
}
