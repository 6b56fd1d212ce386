//! Cases on a GPU: the plans that users get, with memory whose surroundings are checked.
//!
//! All tensors of a call, its workspace and the poison around each of them are one image, which is copied to
//! the device, worked on there and copied back.

use std::sync::{PoisonError, RwLock};

use msdeform::{Error as ProblemError, Mode, Role};
use msdeform_cuda::registry::find_among;
use msdeform_cuda::variants::Variant;
use msdeform_cuda::{
    Ahead, BackwardOptions, Context, DeviceBuffer, DiskCache, Engine, Error, Plan, PlanOptions,
    PointerChecks, Pointers, Stream, Workspace, dispatch,
};

use super::{CudaRules, Fault, Phase, Ran, Rules, Runner, Worker};
use crate::HostTensors;
use crate::case::{Case, VariantChoice, Wants};
use crate::guarded::{Guarded, buffers, collect};

/// A GPU.
pub struct CudaRunner {
    ordinal: usize,
    context: Context,
    rules: CudaRules,
    /// Replaced by [`Runner::settle`]: code that was compiled for random problems is never used again.
    engine: RwLock<Option<Engine>>,
}

impl CudaRunner {
    /// Opens device `ordinal`, to run these variants. Nothing is read from the user's cache or written to it.
    ///
    /// # Errors
    /// No driver, no such device.
    pub fn new(ordinal: usize, variants: &'static [&'static dyn Variant]) -> Result<Self, Error> {
        let context = Context::new(ordinal)?;
        let rules = CudaRules::new(context.props().clone(), variants);
        Ok(Self { ordinal, context, rules, engine: RwLock::new(None) })
    }

    /// The device's context.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// The engine of its plans, with what was compiled.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn engine(&self) -> Result<Engine, Error> {
        let current = self.engine.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(engine) = current {
            return Ok(engine);
        }
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let off = msdeform_tuning::Source::Off;
            *slot = Some(Engine::with_tuning(self.ordinal, DiskCache::nowhere(), Some(&off))?);
        }
        // Just filled.
        slot.clone().ok_or(Error::NoDevice { ordinal: self.ordinal, count: 0 })
    }
}

impl Runner for CudaRunner {
    fn rules(&self) -> &dyn Rules {
        &self.rules
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, String> {
        let streams = || -> Result<[Stream; 3], Error> {
            Ok([
                Stream::new(&self.context)?,
                Stream::new(&self.context)?,
                Stream::default_of(&self.context),
            ])
        };
        let streams = streams().map_err(|error| error.to_string())?;
        Ok(Box::new(CudaWorker { runner: self, streams, arena: None }))
    }

    fn settle(&self) {
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn device_bytes(&self) -> Option<u64> {
        let (free, total) = self.context.memory_bytes().ok()?;
        Some((total - free) as u64)
    }
}

struct CudaWorker<'a> {
    runner: &'a CudaRunner,
    streams: [Stream; 3],
    /// Kept from case to case, as words.
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
    let backward = match case.wants {
        Wants::Output => None,
        Wants::Gradients(gradients) => {
            let grad_output_strides = Some(case.upstream_strides());
            Some(BackwardOptions { gradients, mode: case.mode, grad_output_strides })
        }
    };
    let options = PlanOptions {
        backward,
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

impl Worker for CudaWorker<'_> {
    fn run(
        &mut self,
        case: &Case,
        inputs: &HostTensors,
        phase: &mut dyn FnMut(Phase),
    ) -> Result<Ran, Fault> {
        let plan = self.runner.engine().and_then(|engine| plan(&engine, &self.runner.rules, case));
        let plan = plan.map_err(|error| match error {
            Error::Problem(ProblemError::Unsupported { .. }) => Fault::Refused(error.to_string()),
            other => self.fault(&other),
        })?;
        phase(Phase::Running);
        let stream = (case.seed % 3) as usize;
        let written = self.execute(&plan, case, inputs, stream)?;
        if case.wants != Wants::Output && case.mode == Mode::Deterministic {
            let again = self.execute(&plan, case, inputs, (stream + 1) % 3)?;
            if again != written {
                return Err(Fault::Failed("a second deterministic run gives other bits".into()));
            }
        }
        Ok(Ran { written, launches: plan.kernels().count() as u64 })
    }
}

impl CudaWorker<'_> {
    fn execute(
        &mut self,
        plan: &Plan,
        case: &Case,
        inputs: &HostTensors,
        stream: usize,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let mut buffers = buffers(case, inputs);
        buffers.push(Guarded::poisoned(None, plan.workspace_bytes(), 0));
        let mut image: Vec<f32> = Vec::new();
        let mut starts = Vec::new();
        for buffer in &buffers {
            starts.push(image.len());
            image.extend_from_slice(bytemuck::cast_slice(buffer.words()));
        }
        let placed = buffers.iter().zip(&starts);
        let placed: Vec<(Option<Role>, u64)> = placed
            .map(|(buffer, start)| (buffer.role, (4 * start + buffer.first()) as u64))
            .collect();
        self.compute(plan, &mut image, stream, &placed).map_err(|error| self.fault(&error))?;
        for (buffer, &start) in buffers.iter_mut().zip(&starts) {
            let words: &mut [f32] = bytemuck::cast_slice_mut(buffer.words_mut());
            let len = words.len();
            words.copy_from_slice(&image[start..start + len]);
        }
        Ok(collect(&buffers)?)
    }

    /// Replaces an image, in which the tensors and the workspace begin at these bytes, by what the call makes of it.
    fn compute(
        &mut self,
        plan: &Plan,
        image: &mut [f32],
        stream: usize,
        placed: &[(Option<Role>, u64)],
    ) -> Result<(), Error> {
        let stream = &self.streams[stream];
        let arena = match self.arena.take() {
            Some(arena) if arena.len() >= image.len() => self.arena.insert(arena),
            small => {
                drop(small);
                let len = image.len().next_power_of_two();
                self.arena.insert(DeviceBuffer::filled(stream, len, 0xFF)?)
            }
        };
        arena.copy_from(stream, 0, image)?;
        let base = arena.address();
        let pointers = placed.iter().fold(Pointers::default(), |all, (role, at)| match role {
            Some(role) => all.with(*role, base + at),
            None => all.with_workspace(base + at),
        });
        // SAFETY: every tensor of the case lies in the image, which the arena holds until the copy below has
        // waited for the stream; the arena belongs to this worker alone.
        unsafe { plan.launch(stream, &pointers) }?;
        arena.copy_to(stream, image)
    }

    /// What an error means for the cases to come.
    fn fault(&self, error: &Error) -> Fault {
        match self.runner.context.synchronize() {
            Ok(()) => Fault::Failed(error.to_string()),
            Err(_) => Fault::DeviceLost(error.to_string()),
        }
    }
}
