//! A variant, compiled, with everything but the pointers.

use std::ffi::c_void;
use std::sync::Arc;

use msdeform::VariantSpec;

use super::operands::{Operand, Pointers};
use super::options::Choices;
use crate::driver::{Context, Label, LaunchGeometry, Stream, ZEROING, zero_bytes};
use crate::engine::{Engine, Kernel};
use crate::error::{DriverError, Error, Result};
use crate::nvrtc::KernelResources;
use crate::params::Params;
use crate::pipeline::{Region, Step};
use crate::preamble::{Preamble, PreambleRecipe};
use crate::tuning::ChosenVariant;
use crate::variants::{Call, Configuration, KnobChoices, Variant};

#[derive(Debug)]
pub(super) struct Loaded {
    pub spec: &'static VariantSpec,
    pub configuration: Configuration,
    queue: Vec<Queued>,
    params: Params,
    preamble: Option<Box<dyn Preamble>>,
}

/// Where a launch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// At the first step.
    Preparation,
    /// Behind what an earlier launch prepared.
    Operator,
}

/// A step with what it needs.
#[derive(Debug)]
enum Queued {
    Launch { kernel: Kernel, geometry: LaunchGeometry, label: Label },
    Zero { region: Region, label: Label },
}

/// The memory of one launch.
#[derive(Clone, Copy)]
pub(super) struct Targets<'a> {
    pub operands: &'a [Operand],
    pub pointers: &'a Pointers,
    pub workspace: u64,
}

impl Targets<'_> {
    /// The parameter with its pointers.
    fn fill(&self, mut params: Params) -> Params {
        for (place, operand) in self.operands.iter().enumerate() {
            let address = if operand.is_present { self.pointers.get(operand.role) } else { 0 };
            params.set_tensor(place, address);
        }
        params.set_workspace(self.workspace);
        params
    }

    /// Address and size.
    fn region(&self, region: Region) -> (u64, usize) {
        match region {
            Region::Workspace { offset, bytes } => (self.workspace + offset as u64, bytes),
            Region::Tensor(role) => {
                let operand = self.operands.iter().find(|operand| operand.role == role);
                (self.pointers.get(role), operand.map_or(0, |operand| operand.bytes))
            }
        }
    }
}

/// A kernel of a plan: what it is called, how it is launched, what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedKernel<'a> {
    /// The entry in the variant's file.
    pub entry: &'a str,
    /// Grid, block and shared memory.
    pub geometry: LaunchGeometry,
    /// Registers and memory.
    pub resources: KernelResources,
}

impl Loaded {
    /// The tuned choice if it loads on this GPU, else the sure one. A choice that was tuned with another compiler
    /// may need more registers now. Only an error of the sure choice is returned.
    pub(super) fn best(
        engine: &Engine,
        choices: &Choices,
        call: &Call<'_>,
        level_table: u64,
    ) -> Result<Self> {
        let make = |ChosenVariant { variant, knobs }: &ChosenVariant| {
            let made = Self::configured(engine, variant, call, knobs, level_table)?;
            match made.knobs_if_preamble_is_refused(engine.context(), variant)? {
                Some(knobs) => Self::configured(engine, variant, call, &knobs, level_table),
                None => Ok(made),
            }
        };
        let tuned = choices.tuned.as_ref().and_then(|tuned| make(tuned).ok());
        tuned.map_or_else(|| make(&choices.sure), Ok)
    }

    fn configured(
        engine: &Engine,
        variant: &'static Variant,
        call: &Call<'_>,
        knobs: &KnobChoices,
        level_table: u64,
    ) -> Result<Self> {
        let configured = variant.configure(call, knobs);
        let configuration = configured.map_err(|reason| variant.refusal(reason))?;
        Self::new(engine, variant, call, configuration, level_table)
    }

    pub(super) fn new(
        engine: &Engine,
        variant: &'static Variant,
        call: &Call<'_>,
        configuration: Configuration,
        level_table: u64,
    ) -> Result<Self> {
        let spec = variant.spec;
        let kernels = engine.kernels(variant, &configuration, call)?;
        let params = configuration.params(call, level_table)?;
        let mut queue = Vec::with_capacity(configuration.pipeline.steps.len());
        for step in &configuration.pipeline.steps {
            queue.push(match *step {
                Step::Zero(region) => {
                    Queued::Zero { region, label: Label::new(spec.id, ZEROING, call.problem) }
                }
                Step::Launch { name, geometry, .. } => {
                    let Some(kernel) = kernels.iter().find(|kernel| kernel.step == name) else {
                        continue;
                    };
                    kernel
                        .function
                        .prepare(&geometry, call.device)
                        .map_err(|source| Error::from(source).in_launch_of(spec.id))?;
                    let label = Label::new(spec.id, &kernel.entry, call.problem);
                    Queued::Launch { kernel: kernel.clone(), geometry, label }
                }
            });
        }
        let prepare = |recipe: &Arc<dyn PreambleRecipe>| recipe.prepare(engine.context(), call);
        let preamble = configuration.preamble.as_ref().map(prepare).transpose()?;
        Ok(Self { spec, configuration, queue, params, preamble })
    }

    /// The knobs with which the variant does without its preamble, if the driver refuses to make that.
    /// It is asked before the first launch, with an address like any other, which it only stores.
    fn knobs_if_preamble_is_refused(
        &self,
        context: &Context,
        variant: &Variant,
    ) -> Result<Option<KnobChoices>> {
        const ANY_ADDRESS: u64 = 1 << 32;
        let (Some(preamble), Some((knob, value))) =
            (&self.preamble, self.configuration.without_preamble)
        else {
            return Ok(None);
        };
        let _entered = context.enter()?;
        if preamble.words(ANY_ADDRESS).is_ok() {
            return Ok(None);
        }
        KnobChoices::new(variant, &[(knob.to_owned(), value)]).map(Some)
    }

    /// Bytes of device memory that are its own.
    pub(super) fn device_bytes(&self) -> usize {
        self.preamble.as_ref().map_or(0, |preamble| preamble.device_bytes())
    }

    /// Queues the steps. The context must be current.
    ///
    /// # Safety
    /// The targets are what the kernels of the plan's problem take, valid until the stream is done.
    pub(super) unsafe fn queue(
        &self,
        stream: &Stream,
        targets: &Targets<'_>,
        start: Start,
    ) -> Result<()> {
        let refused = |source: DriverError| Error::from(source).in_launch_of(self.spec.id);
        let value = targets.pointers.get(msdeform::Role::Value);
        let params = targets.fill(self.params);
        let whole: Vec<u64>;
        let argument = match &self.preamble {
            None => params.words(),
            Some(preamble) => {
                let first = preamble.words(value).map_err(refused)?;
                whole = first.into_iter().chain(params.words().iter().copied()).collect();
                &whole
            }
        };
        let argument = argument.as_ptr().cast::<c_void>();
        let extra = self.preamble.as_ref().and_then(|preamble| preamble.launch_attribute(value));
        let skipped = match start {
            Start::Preparation => 0,
            Start::Operator => self.configuration.pipeline.preparation,
        };
        let noted = |label: Label, queue: &dyn Fn() -> std::result::Result<(), DriverError>| {
            stream.context().noted(label, stream, queue)
        };
        for step in self.queue.iter().skip(skipped) {
            match step {
                // SAFETY: the parameter begins with what the kernel declares (a layout test holds
                // that); the caller answers for what it points to.
                Queued::Launch { kernel, geometry, label, .. } => noted(*label, &|| unsafe {
                    kernel.function.launch(stream, geometry, extra, argument)
                }),
                Queued::Zero { region, label } => {
                    let (address, bytes) = targets.region(*region);
                    // SAFETY: the caller answers for the region.
                    noted(*label, &|| unsafe { zero_bytes(stream, address, bytes) })
                }
            }
            .map_err(|error| error.in_launch_of(self.spec.id))?;
        }
        Ok(())
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = PlannedKernel<'_>> {
        self.queue.iter().filter_map(|step| match step {
            Queued::Launch { kernel: Kernel { entry, resources, .. }, geometry, .. } => {
                Some(PlannedKernel { entry, geometry: *geometry, resources: *resources })
            }
            Queued::Zero { .. } => None,
        })
    }
}
