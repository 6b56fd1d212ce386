//! An NVIDIA GPU as a device.
//!
//! What runs there, and how it is timed, is in `prepared`.

mod prepared;

use std::any::Any;
use std::collections::BTreeMap;

use msdeform::{BackwardCall, Direction, Problem, VariantSpec};
use msdeform_cuda::registry::find_among;
use msdeform_cuda::tuning::{self, CallClass, Origin, Source, Tuning};
use msdeform_cuda::variants::{Call, Knob, KnobChoices, Variant};
use msdeform_cuda::{
    BackwardOptions, DeviceBuffer, DiskCache, Engine, Error, Event, KernelPack, Plan, PlanOptions,
    Stream, Workspace, dispatch,
};
use rayon::prelude::*;

use super::{
    Bandwidth, Device, DeviceError, DeviceId, DeviceOptions, KnobbedVariant, Ready, Result, Setting,
};
use crate::HostTensors;
use crate::device::named::{id_in, knobs_in};
use crate::runner::{CudaRunner, Runner};

use prepared::PreparedCuda;

/// What the memory probe copies: far more than any L2.
const PROBE_BYTES: usize = 1 << 30;
const PROBE_PASSES: usize = 5;

pub struct CudaDevice {
    setup: Setup,
    runner: CudaRunner,
    slug: String,
    name: String,
}

/// What every plan on a GPU is made with.
#[derive(Clone, Debug)]
struct Setup {
    engine: Engine,
    options: DeviceOptions,
    /// What there is to choose from.
    variants: &'static [&'static Variant],
}

impl Setup {
    /// The options of a plan that is exactly this choice.
    fn plan_options(
        &self,
        problem: &Problem,
        choice: &KnobbedVariant,
    ) -> Result<PlanOptions, Error> {
        let (mode, gradients) = (self.options.mode, self.options.gradients_of(problem));
        let backward = BackwardOptions { mode, gradients, ..Default::default() };
        Ok(PlanOptions {
            backward: (choice.variant.direction == Direction::Backward).then_some(backward),
            variant: Some(find_among(self.variants, choice.variant.id)?),
            knobs: choice.knobs.iter().map(|(name, value)| (name.clone(), *value)).collect(),
            ..Default::default()
        })
    }

    fn plan(&self, problem: &Problem, choice: &KnobbedVariant) -> Result<Plan, Error> {
        Plan::new(&self.engine, problem, &self.plan_options(problem, choice)?)
    }
}

impl CudaDevice {
    /// Opens a GPU by its number, to run these variants.
    pub(crate) fn new(
        ordinal: usize,
        options: DeviceOptions,
        variants: &'static [&'static Variant],
    ) -> Result<Self> {
        let tuning = options.ignore_tuning.then_some(&Source::Off);
        let missing = |error: Error| DeviceError::Unavailable {
            device: DeviceId::Cuda(ordinal),
            missing: error.to_string(),
        };
        let engine = Engine::with_tuning(ordinal, DiskCache::of_user(), tuning).map_err(missing)?;
        let runner = CudaRunner::new(ordinal, variants).map_err(missing)?;
        let name = engine.context().props().name.clone();
        let setup = Setup { engine, options, variants };
        Ok(Self { setup, runner, slug: tuning::slug(&name), name })
    }

    /// The GPU that a device is, for what is about GPUs alone: what is compiled for known models, the laboratory's probes.
    pub fn of(device: &dyn Device) -> Option<&Self> {
        let device: &dyn Any = device;
        device.downcast_ref()
    }

    pub const fn engine(&self) -> &Engine {
        &self.setup.engine
    }

    /// The call of a problem, with the mode and the gradients of the options.
    fn call<'a>(&'a self, direction: Direction, problem: &'a Problem) -> Call<'a> {
        let mut call = Call::in_direction(direction, problem, self.setup.engine.context().props());
        if let Some(backward) = &mut call.backward {
            backward.mode = self.setup.options.mode;
            backward.gradients = self.setup.options.gradients_of(problem);
        }
        call
    }

    /// A variant with the knobs in its name; else with those that were measured as the best for the problem, where
    /// it is the one that was; else with its own.
    fn choice(&self, named: &VariantSpec, problem: &Problem) -> Result<KnobbedVariant> {
        let spec = self.find(named)?.spec;
        if named.id != spec.id {
            let knobs =
                knobs_in(named.id).map_err(|why| DeviceError::unsupported(spec.id, &why))?;
            return Ok(KnobbedVariant { variant: spec, knobs });
        }
        let call = self.call(spec.direction, problem);
        let tuned = tuning::choose(self.setup.engine.tuning(), &call);
        let knobs = tuned.filter(|tuned| tuned.variant.spec.id == spec.id);
        let knobs = knobs.map_or_else(Vec::new, |tuned| tuned.knobs.chosen().to_vec());
        Ok(KnobbedVariant { variant: spec, knobs: knobs.into_iter().collect() })
    }

    /// The kernel that a choice names, with its knobs.
    fn knobbed(&self, choice: &KnobbedVariant) -> Result<(&'static Variant, KnobChoices)> {
        let variant = self.find(choice.variant)?;
        let knobs: Vec<(String, i64)> = choice.knobs.clone().into_iter().collect();
        let knobs = KnobChoices::new(variant, &knobs);
        let knobs = knobs.map_err(|why| DeviceError::unsupported(choice.variant.id, &why))?;
        Ok((variant, knobs))
    }

    /// The kernel pack, or why it is not used.
    fn pack(&self) -> Option<String> {
        match self.setup.engine.code().pack() {
            Ok(pack) => pack.map(KernelPack::summary),
            Err(ignored) => Some(format!("not used: {ignored}")),
        }
    }

    fn find(&self, spec: &VariantSpec) -> Result<&'static Variant> {
        find_among(self.setup.variants, id_in(spec.id)).map_err(|_| DeviceError::UnknownVariant {
            device: self.id(),
            variant: spec.id.to_owned(),
            known: self.variants().into_iter().map(|spec| spec.id).collect(),
        })
    }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(self.setup.engine.context().ordinal())
    }

    fn slug(&self) -> &str {
        &self.slug
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let props = self.setup.engine.context().props();
        let (major, minor) = props.compute_capability;
        let nvrtc = self.setup.engine.code().nvrtc().map(|nvrtc| nvrtc.version().to_string());
        let facts = [
            ("gpu", props.name.clone()),
            ("compute_capability", format!("{major}.{minor}")),
            ("multiprocessors", props.multiprocessors.to_string()),
            ("clock_khz", props.clock_khz.to_string()),
            ("memory_clock_khz", props.memory_clock_khz.to_string()),
            ("memory_bus_bits", props.memory_bus_bits.to_string()),
            ("memory_bytes", props.memory_bytes.to_string()),
            ("l2_bytes", props.l2_bytes.to_string()),
            ("shared_bytes_per_multiprocessor", props.shared_bytes_per_multiprocessor.to_string()),
            ("driver_cuda", self.setup.engine.context().driver().to_string()),
            ("nvrtc", nvrtc.unwrap_or_else(|_| "missing".to_owned())),
            ("kernel_pack", self.pack().unwrap_or_else(|| "none".to_owned())),
            ("tuning", self.setup.engine.tuning().summary()),
        ];
        facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
    }

    fn software(&self) -> Option<String> {
        let nvrtc = match self.setup.engine.code().nvrtc() {
            Ok(nvrtc) => format!("NVRTC {} ({})", nvrtc.version(), nvrtc.path().display()),
            Err(_) => "no NVRTC".to_owned(),
        };
        let pack = self.pack().map_or_else(String::new, |pack| format!(", kernel pack {pack}"));
        Some(format!("CUDA driver {}, {nvrtc}{pack}", self.setup.engine.context().driver()))
    }

    fn runner(&self) -> &dyn Runner {
        &self.runner
    }

    fn variants(&self) -> Vec<&'static VariantSpec> {
        self.setup.variants.iter().map(|variant| variant.spec).collect()
    }

    fn builtin(&self, problem: &Problem, direction: Direction) -> Result<&'static VariantSpec> {
        match dispatch::builtin(&self.call(direction, problem)) {
            Ok(variant) => Ok(variant.spec),
            Err(error) => Err(DeviceError::refusal("dispatch", error)),
        }
    }

    fn dispatch(&self, problem: &Problem, direction: Direction) -> Result<&'static VariantSpec> {
        match tuning::choose(self.setup.engine.tuning(), &self.call(direction, problem)) {
            Some(tuned) => Ok(tuned.variant.spec),
            None => self.builtin(problem, direction),
        }
    }

    fn supports(&self, spec: &VariantSpec, problem: &Problem) -> Result<()> {
        let variant = self.find(spec)?;
        if spec.id != variant.spec.id {
            return self.admits(&self.choice(spec, problem)?, problem);
        }
        let checked = variant.check(&self.call(variant.spec.direction, problem));
        checked.map_err(|error| DeviceError::refusal(variant.spec.id, error))
    }

    fn prepare<'a>(
        &self,
        variants: &[&VariantSpec],
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Ready<'a>> {
        let choices = variants.iter().map(|variant| self.choice(variant, problem));
        let choices = choices.collect::<Result<Vec<_>>>()?;
        PreparedCuda::ready(&self.setup, &choices, problem, inputs)
    }

    fn prepare_call<'a>(
        &self,
        variant: &'static VariantSpec,
        problem: &Problem,
        backward: Option<BackwardCall>,
        inputs: &'a HostTensors,
    ) -> Result<Ready<'a>> {
        let mut setup = self.setup.clone();
        if let Some(BackwardCall { mode, gradients, .. }) = backward {
            (setup.options.mode, setup.options.gradients) = (mode, gradients);
        }
        PreparedCuda::ready(&setup, &[KnobbedVariant::own(variant)], problem, inputs)
    }

    fn tuning(&self) -> &Tuning {
        self.setup.engine.tuning()
    }

    fn origin(&self) -> Origin {
        tuning::origin(self.setup.engine.context().props())
    }

    fn class(&self, problem: &Problem, direction: Direction) -> CallClass {
        CallClass::of(problem, direction, self.setup.options.mode, None)
    }

    fn settings(&self, spec: &VariantSpec, problem: &Problem) -> Vec<Setting> {
        let Ok(variant) = self.find(spec) else { return Vec::new() };
        let call = self.call(spec.direction, problem);
        let own = variant.configure(&call, &KnobChoices::default());
        let own = own.map_or_else(|_| Vec::new(), |configuration| configuration.knobs);
        let setting = |knob: &Knob| {
            let (_, value) = own.iter().find(|(name, _)| *name == knob.name)?;
            Some(Setting { name: knob.name, value: *value, values: knob.values })
        };
        variant.knobs.iter().filter_map(setting).collect()
    }

    fn admits(&self, choice: &KnobbedVariant, problem: &Problem) -> Result<()> {
        self.supports(choice.variant, problem)?;
        let (variant, knobs) = self.knobbed(choice)?;
        let call = self.call(choice.variant.direction, problem);
        let configured = variant.configure(&call, &knobs);
        configured.map(drop).map_err(|why| DeviceError::unsupported(choice.variant.id, &why))
    }

    fn compile_later(&self, variant: &VariantSpec, problem: &Problem) {
        // A refusal is repeated when the variant is used.
        let Ok(choice) = self.choice(variant, problem) else { return };
        let Ok((variant, knobs)) = self.knobbed(&choice) else { return };
        let call = self.call(choice.variant.direction, problem);
        self.setup.engine.compiler().compile_later(variant, &knobs, &call);
    }

    fn compile(&self, choices: &[KnobbedVariant], problem: &Problem) {
        choices.par_iter().for_each(|choice| {
            let named = self.choice(choice.variant, problem).ok();
            let choice = &named.filter(|_| choice.knobs.is_empty()).unwrap_or(choice.clone());
            // No memory for the workspace: many plans are made at once. A plan that cannot be made
            // fails again when it is needed.
            let options = self.setup.plan_options(problem, choice);
            let options =
                options.map(|options| PlanOptions { workspace: Workspace::OfCaller, ..options });
            drop(options.and_then(|options| Plan::new(&self.setup.engine, problem, &options)));
        });
    }

    fn probe_bandwidth(&self) -> Result<Bandwidth> {
        probe(&self.setup.engine).map_err(|source| DeviceError::Unavailable {
            device: self.id(),
            missing: source.to_string(),
        })
    }
}

/// No compiler is at work when its library is taken down.
impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.setup.engine.compiler().close();
    }
}

fn failed(spec: &VariantSpec, source: Error) -> DeviceError {
    DeviceError::Cuda { variant: spec.id, source: Box::new(source) }
}

fn probe(engine: &Engine) -> Result<Bandwidth, Error> {
    let context = engine.context();
    let stream = Stream::new(context)?;
    let (free, _) = context.memory_bytes()?;
    let elements = PROBE_BYTES.min(free / 4) / size_of::<f32>();
    let source = DeviceBuffer::<f32>::filled(&stream, elements, 1)?;
    let mut target = DeviceBuffer::<f32>::filled(&stream, elements, 2)?;
    let (start, end) = (Event::new(context)?, Event::new(context)?);
    let mut best_us = f64::INFINITY;
    for _ in 0..PROBE_PASSES {
        start.record(&stream)?;
        target.copy_from_device(&stream, &source)?;
        end.record(&stream)?;
        end.synchronize()?;
        best_us = best_us.min(end.elapsed_us_since(&start)?);
    }
    Ok(Bandwidth {
        copy_gb_per_s: 2.0 * source.bytes() as f64 / best_us * 1e-3,
        buffer_bytes: source.bytes() as u64,
        threads: 1,
        in_cache: 2 * source.bytes() <= context.props().l2_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_the_device_says_what_is_missing() {
        if msdeform_cuda::device_count().is_ok() {
            eprintln!("SKIPPED: this machine has a CUDA driver");
            return;
        }
        let error = CudaDevice::new(0, DeviceOptions::default(), msdeform_cuda::REGISTRY)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("cuda:0") && error.contains("CUDA driver"), "{error}");
    }
}
