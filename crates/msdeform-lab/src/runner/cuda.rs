//! Cases on a GPU: the plans that users get, with memory whose surroundings are checked.
//!
//! All tensors of a call, its workspace and the poison around each of them are one image, which is copied to
//! the device, worked on there and copied back.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use msdeform::{DType, Error as ProblemError, Mode, Role};
use msdeform_cuda::registry::find_among;
use msdeform_cuda::tuning::Source;
use msdeform_cuda::variants::Variant;
use msdeform_cuda::{
    Ahead, BackwardOptions, Context, DeviceBuffer, DiskCache, Engine, Error, Plan, PlanOptions,
    PointerChecks, Pointers, Stream, Workspace, dispatch,
};

use super::{CudaRules, Rules, Runner};
use crate::case::{CallMemory, Case, Trespass, VariantChoice};
use crate::device::{DeviceError, Prepared, Ready, Result};
use crate::{Buffer, HostTensors};

pub struct CudaRunner {
    ordinal: usize,
    context: Context,
    rules: CudaRules,
    /// Replaced by [`Runner::settle`]: code that was compiled for random problems is never used again.
    engine: RwLock<Option<Engine>>,
    lanes: Mutex<Vec<Lane>>,
}

impl CudaRunner {
    /// Opens device `ordinal`, to run these variants. Nothing is read from the user's cache or written to it.
    pub fn new(ordinal: usize, variants: &'static [&'static Variant]) -> Result<Self, Error> {
        let context = Context::new(ordinal)?;
        let rules = CudaRules::new(context.props().clone(), variants);
        Ok(Self { ordinal, context, rules, engine: RwLock::new(None), lanes: Mutex::default() })
    }

    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// The engine of its plans, with what was compiled.
    pub fn engine(&self) -> Result<Engine, Error> {
        let current = self.engine.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(engine) = current {
            return Ok(engine);
        }
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let cache = DiskCache::nowhere();
            *slot = Some(Engine::with_tuning(self.ordinal, cache, Some(&Source::Off))?);
        }
        // Just filled.
        slot.clone().ok_or(Error::NoDevice { ordinal: self.ordinal, count: 0 })
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that an earlier case left, or a new one.
    fn lane(&self) -> Result<Lane, Error> {
        if let Some(lane) = self.lanes().pop() {
            return Ok(lane);
        }
        let context = &self.context;
        let streams = [Stream::new(context)?, Stream::new(context)?, Stream::default_of(context)];
        Ok(Lane { streams, arena: None })
    }

    /// What an error means for the cases to come.
    fn error(&self, error: &Error) -> DeviceError {
        let reason = error.to_string();
        match self.context.synchronize() {
            Ok(()) => DeviceError::Failed { reason },
            Err(_) => DeviceError::Lost { reason },
        }
    }
}

impl Runner for CudaRunner {
    fn rules(&self) -> &dyn Rules {
        &self.rules
    }

    fn prepare<'a>(&'a self, case: &'a Case, inputs: &'a HostTensors) -> Result<Ready<'a>> {
        let plan = self.engine().and_then(|engine| plan(&engine, &self.rules, case));
        let plan = plan.map_err(|error| match error {
            Error::Problem(ProblemError::Unsupported { .. }) => {
                DeviceError::Refused { reason: error.to_string() }
            }
            other => self.error(&other),
        })?;
        let workspace = Buffer::poisoned_bytes(DType::F32, plan.workspace_bytes(), 0);
        let memory = CallMemory::of_case(case, inputs);
        let runs = (case.seed % 3) as usize;
        Ok(Box::new(PreparedCase { runner: self, case, plan, memory, workspace, runs }))
    }

    fn settle(&self) {
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.lanes().clear();
    }

    fn device_bytes(&self) -> Option<u64> {
        let (free, total) = self.context.memory_bytes().ok()?;
        Some((total - free) as u64)
    }
}

/// What a run needs of the device, kept for the next one.
struct Lane {
    streams: [Stream; 3],
    /// Room for the image of a case, as words.
    arena: Option<DeviceBuffer<f32>>,
}

fn plan(engine: &Engine, rules: &CudaRules, case: &Case) -> Result<Plan, Error> {
    let (variant, knobs) = match &case.choice {
        // Plans choose no kernels for offsets by themselves; these are to show whether they could.
        VariantChoice::Own if case.problem.offsets().is_some() => {
            (Some(dispatch::builtin(&case.call(engine.context().props()))?), Vec::new())
        }
        VariantChoice::Own => (None, Vec::new()),
        VariantChoice::Named { variant, knobs } => {
            (Some(find_among(rules.variants(), variant)?), knobs.clone())
        }
    };
    let (mode, grad_output_strides) = (case.mode, Some(case.upstream_strides()));
    let backward = |gradients| BackwardOptions { gradients, mode, grad_output_strides };
    let options = PlanOptions {
        backward: case.wants.map(backward),
        variant,
        knobs,
        strides: Some(case.value_strides()),
        sources: Some(case.sources()),
        query_raster_width: case.raster_width,
        pointer_checks: PointerChecks::Every,
        workspace: Workspace::OfCaller,
        ahead: Ahead::Nothing,
    };
    Plan::new(engine, &case.problem, &options)
}

struct PreparedCase<'a> {
    runner: &'a CudaRunner,
    case: &'a Case,
    plan: Plan,
    memory: CallMemory<'a>,
    workspace: Buffer,
    /// Each run takes the next stream.
    runs: usize,
}

impl Prepared for PreparedCase<'_> {
    fn poison(&mut self) -> Result<()> {
        self.memory.written.poison();
        self.workspace.poison();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.execute().map_err(|error| self.runner.error(&error))
    }

    fn read(&mut self) -> Result<HostTensors> {
        if let Some(place) = self.workspace.trespass() {
            return Err(Trespass { tensor: "workspace", place }.into());
        }
        Ok(self.memory.results()?)
    }

    fn is_reproducible(&self) -> bool {
        self.case.wants.is_some() && self.case.mode == Mode::Deterministic
    }

    fn launches(&self) -> u64 {
        self.plan.kernels().count() as u64
    }
}

impl PreparedCase<'_> {
    /// All tensors and the workspace, each with its role.
    fn buffers(&mut self) -> impl Iterator<Item = (Option<Role>, &mut Buffer)> {
        let tensors = self.memory.read.to_mut().iter_mut().chain(self.memory.written.iter_mut());
        let tensors = tensors.map(|(role, buffer)| (Some(role), buffer));
        tensors.chain([(None, &mut self.workspace)])
    }

    /// Replaces the buffers by what the call makes of them.
    fn execute(&mut self) -> Result<(), Error> {
        let (mut image, mut placed): (Vec<f32>, _) = (Vec::new(), Vec::new());
        for (role, buffer) in self.buffers() {
            placed.push((role, (4 * image.len() + buffer.first()) as u64));
            image.extend_from_slice(bytemuck::cast_slice(buffer.image()));
        }
        let mut lane = self.runner.lane()?;
        self.launch(&mut lane, &mut image, &placed)?;
        self.runner.lanes().push(lane);
        let mut left = &image[..];
        for (_, buffer) in self.buffers() {
            let words: &mut [f32] = bytemuck::cast_slice_mut(buffer.image_mut());
            let (of_buffer, rest) = left.split_at(words.len());
            words.copy_from_slice(of_buffer);
            left = rest;
        }
        Ok(())
    }

    /// Replaces an image, in which the tensors and the workspace begin at these bytes, by what the call makes of it.
    fn launch(
        &mut self,
        Lane { streams, arena }: &mut Lane,
        image: &mut [f32],
        placed: &[(Option<Role>, u64)],
    ) -> Result<(), Error> {
        let stream = &streams[self.runs % streams.len()];
        self.runs += 1;
        let arena = match arena.take() {
            Some(large) if large.len() >= image.len() => arena.insert(large),
            small => {
                drop(small);
                let len = image.len().next_power_of_two();
                arena.insert(DeviceBuffer::filled(stream, len, 0xFF)?)
            }
        };
        arena.copy_from(stream, 0, image)?;
        let base = arena.address();
        let pointers = placed.iter().fold(Pointers::default(), |all, (role, at)| match role {
            Some(role) => all.with(*role, base + at),
            None => all.with_workspace(base + at),
        });
        // SAFETY: every tensor of the case lies in the image, which the arena holds until the copy below has
        // waited for the stream; the arena is this call's alone.
        unsafe { self.plan.launch(stream, &pointers) }?;
        arena.copy_to(stream, image)
    }
}
