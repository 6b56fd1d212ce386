//! The CPU as a device.

use std::collections::BTreeMap;

use msdeform::cpu::{CpuVariant, max_threads, variants};
use msdeform::{CpuOptions, CpuPlan, Direction, Isa, Mode, Problem, VariantSpec};
use msdeform_cuda::tuning::{CallClass, Origin, Source, Tuning};

use super::bandwidth;
use super::cpu_facts::CpuFacts;
use super::{
    Bandwidth, Device, DeviceError, DeviceId, DeviceOptions, KnobbedVariant, Prepared, Ready,
    Result,
};
use crate::case::CallMemory;
use crate::runner::{CpuRunner, Runner};
use crate::{Ceiling, HostTensors};

#[derive(Debug)]
pub struct CpuDevice {
    facts: CpuFacts,
    slug: String,
    name: String,
    threads: usize,
    options: DeviceOptions,
    tuning: Tuning,
}

pub(super) fn registered() -> impl Iterator<Item = &'static VariantSpec> {
    variants().iter().map(|variant| &variant.spec)
}

fn find(spec: &VariantSpec) -> Result<&'static CpuVariant> {
    variants().iter().find(|variant| variant.spec.id == spec.id).ok_or_else(|| {
        DeviceError::UnknownVariant {
            device: DeviceId::Cpu,
            variant: spec.id.to_owned(),
            known: registered().map(|spec| spec.id).collect(),
        }
    })
}

/// The origin that a tuning file of a CPU states. Its variants are not compiled at run time, so the version of the package
/// stands for their sources.
fn origin(name: &str) -> Origin {
    let ids: Vec<&str> = registered().map(|spec| spec.id).collect();
    Origin {
        device: name.to_owned(),
        compute_capability: None,
        multiprocessors: None,
        msdeform: env!("CARGO_PKG_VERSION").to_owned(),
        fingerprint: ids.join(" "),
    }
}

impl CpuDevice {
    pub fn new(options: DeviceOptions) -> Result<Self> {
        let facts = CpuFacts::detect();
        let threads = options.threads.unwrap_or(facts.logical_cores);
        if !(1..=max_threads()).contains(&threads) {
            return Err(DeviceError::ThreadCount { threads, most: max_threads() });
        }
        let (slug, name) = (facts.slug(), facts.name());
        let source =
            if options.ignore_tuning { Source::Off } else { Source::of_environment(&name) };
        let tuning = Tuning::load(&source, &origin(&name));
        Ok(Self { facts, slug, name, threads, options, tuning })
    }

    fn variant(direction: Direction, isa: Isa) -> Option<&'static VariantSpec> {
        variants()
            .iter()
            .find(|variant| variant.spec.direction == direction && variant.isa == isa)
            .map(|variant| &variant.spec)
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn slug(&self) -> &str {
        &self.slug
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = self.facts.facts();
        let sets: Vec<&str> =
            Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Isa::name).collect();
        facts.insert("instruction_sets".into(), sets.join(" "));
        facts.insert("tuning".into(), self.tuning.summary());
        facts
    }

    fn threads(&self) -> Option<usize> {
        Some(self.threads)
    }

    fn runner(&self) -> &dyn Runner {
        &CpuRunner
    }

    fn variants(&self) -> Vec<&'static VariantSpec> {
        registered().collect()
    }

    fn baseline(&self, direction: Direction) -> Option<&'static VariantSpec> {
        Self::variant(direction, Isa::Scalar)
    }

    fn dispatch(&self, problem: &Problem, direction: Direction) -> Result<&'static VariantSpec> {
        let tuned = self.tuning.find(&self.class(problem, direction)).and_then(|entry| {
            let spec = registered().find(|spec| spec.id == entry.best.variant)?;
            (spec.direction == direction && self.supports(spec, problem).is_ok()).then_some(spec)
        });
        tuned.map_or_else(|| self.builtin(problem, direction), Ok)
    }

    fn builtin(&self, problem: &Problem, direction: Direction) -> Result<&'static VariantSpec> {
        let best = Self::variant(direction, Isa::best()).ok_or_else(|| {
            let reason = format!("no {direction} is registered for it");
            DeviceError::unsupported(Isa::best().name(), &reason)
        })?;
        self.supports(best, problem)?;
        Ok(best)
    }

    fn supports(&self, spec: &VariantSpec, problem: &Problem) -> Result<()> {
        let variant = find(spec)?;
        let id = variant.spec.id;
        if !variant.isa.is_available() {
            return Err(DeviceError::unsupported(id, &format!("this CPU has no {}", variant.isa)));
        }
        variant.spec.check_lists(problem).map_err(|error| DeviceError::refusal(id, error))
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn origin(&self) -> Origin {
        origin(&self.name)
    }

    fn class(&self, problem: &Problem, direction: Direction) -> CallClass {
        CallClass::of(problem, direction, Mode::Fast, Some(self.threads))
    }

    fn prepare<'a>(
        &self,
        variants: &[&VariantSpec],
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Ready<'a>> {
        let step = |spec: &&VariantSpec| {
            self.supports(spec, problem)?;
            let (spec, plan) = plan(spec, problem, self.threads)?;
            let gradients = self.options.gradients_of(problem);
            let written = HostTensors::poisoned(problem, spec.direction, gradients);
            Ok(Step { spec, plan, memory: CallMemory::packed(inputs, written) })
        };
        let steps = variants.iter().map(step).collect::<Result<_>>()?;
        let (problem, threads) = (problem.clone(), self.threads);
        Ok(Box::new(PreparedCpu { problem, threads, steps, is_reproducible: true }))
    }

    fn probe_bandwidth(&self) -> Result<Bandwidth> {
        Bandwidth::probe_memory(self.threads, self.facts.last_level_cache_bytes())
    }

    fn ceilings(&self, before: &mut dyn FnMut(&str)) -> Result<Vec<Ceiling>> {
        let ceiling = |name: String, value: f64, what: String| Ceiling {
            name,
            value,
            unit: "GB/s".to_owned(),
            what: format!("{what}, {} threads, bytes read plus bytes written", self.threads),
        };
        before("dram_copy");
        let memory = self.probe_bandwidth()?;
        let what = format!("copy of {} MiB", memory.buffer_bytes >> 20);
        let mut found = vec![ceiling("dram_copy".to_owned(), memory.copy_gb_per_s, what)];
        for (name, bytes) in self.facts.caches.iter().filter(|(name, _)| !name.ends_with('i')) {
            let name = format!("{}_copy", name.to_lowercase());
            before(&name);
            // Source and target fill half of the cache together.
            let bytes = bytes / 4;
            let copied = bandwidth::copy_in_cache(self.threads, bytes)?;
            let what = format!("copy of {} KiB of each thread's own", bytes >> 10);
            found.push(ceiling(name, copied, what));
        }
        before("fma_f32");
        found.push(Ceiling {
            name: "fma_f32".to_owned(),
            value: bandwidth::multiply_adds(self.threads, Isa::best())? * 1e-3,
            unit: "TFLOP/s".to_owned(),
            what: format!(
                "multiply-adds in registers ({}), {} threads, two operations each",
                Isa::best(),
                self.threads
            ),
        });
        Ok(found)
    }
}

fn plan(
    spec: &VariantSpec,
    problem: &Problem,
    threads: usize,
) -> Result<(&'static VariantSpec, CpuPlan)> {
    let CpuVariant { spec, isa } = find(spec)?;
    let options = CpuOptions { threads: Some(threads), isa: Some(*isa) };
    let plan = CpuPlan::new(problem, &options);
    Ok((spec, plan.map_err(|source| DeviceError::Run { variant: spec.id, source })?))
}

/// What is run in turn: one direction, or a forward and a backward as one training step.
pub(crate) struct Step<'a> {
    pub(crate) spec: &'static VariantSpec,
    pub(crate) plan: CpuPlan,
    pub(crate) memory: CallMemory<'a>,
}

pub(crate) struct PreparedCpu<'a> {
    pub(crate) problem: Problem,
    pub(crate) threads: usize,
    pub(crate) steps: Vec<Step<'a>>,
    /// Gradients of a CPU always are; whether a second run must show it.
    pub(crate) is_reproducible: bool,
}

impl Prepared for PreparedCpu<'_> {
    fn poison(&mut self) -> Result<()> {
        self.steps.iter_mut().for_each(|step| step.memory.written.poison());
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.steps.iter_mut().try_for_each(|Step { spec, plan, memory }| {
            memory.run(plan).map_err(|source| DeviceError::Run { variant: spec.id, source })
        })
    }

    fn switch(&mut self, choice: &KnobbedVariant) -> Result<()> {
        let direction = choice.variant.direction;
        for step in self.steps.iter_mut().filter(|step| step.spec.direction == direction) {
            (step.spec, step.plan) = plan(choice.variant, &self.problem, self.threads)?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<HostTensors> {
        let mut results = HostTensors::default();
        for step in &self.steps {
            results = step.memory.results()?;
        }
        Ok(results)
    }

    fn is_reproducible(&self) -> bool {
        self.is_reproducible
    }

    fn mode(&self) -> &'static str {
        let is_backward = |step: &Step<'_>| step.spec.direction == Direction::Backward;
        if self.steps.iter().any(is_backward) { "deterministic" } else { "default" }
    }

    fn workspace_bytes(&self) -> usize {
        self.steps.iter().map(|step| step.plan.workspace_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{ATTENTION, FROM_OFFSETS, Gradients, Operator, Role};

    use super::*;
    use crate::{Case, WorkloadCase, workload};

    #[test]
    fn a_write_outside_of_the_outputs_of_a_measured_call_is_found() {
        let builder = Problem::builder().queries(2).levels([(2, 2)]).channels(2).points(1);
        let problem = builder.build().unwrap();
        let inputs = Case::plain(problem.clone(), None).inputs();
        let spec = CpuDevice::variant(Direction::Forward, Isa::Scalar).unwrap();
        let outputs = HostTensors::poisoned(&problem, spec.direction, Gradients::ALL);
        let (spec, plan) = plan(spec, &problem, 1).unwrap();
        let steps = vec![Step { spec, plan, memory: CallMemory::packed(&inputs, outputs) }];
        let mut prepared = PreparedCpu { problem, threads: 1, steps, is_reproducible: true };
        prepared.run().unwrap();
        prepared.read().unwrap();
        let (_, output) = prepared.steps[0].memory.written.iter_mut().next().unwrap();
        output.image_mut()[0] = 0;
        let error = prepared.read().unwrap_err().to_string();
        assert!(error.starts_with("output was written"), "{error}");
    }

    #[test]
    fn gradients_of_references_are_computed_on_request() {
        let written = |options: DeviceOptions, operator: &'static Operator| -> Vec<Role> {
            let workload = workload::find("edge_one_point").unwrap();
            let case = WorkloadCase { operator, ..WorkloadCase::first_of(workload) };
            let device = CpuDevice::new(options).unwrap();
            let problem = case.problem().unwrap();
            let inputs = case.inputs(&problem).unwrap();
            let spec = device.builtin(&problem, Direction::Backward).unwrap();
            let mut prepared = device.prepare(&[spec], &problem, &inputs).unwrap();
            prepared.run().unwrap();
            let outputs = prepared.read().unwrap();
            assert!(outputs.iter().all(|(_, buffer)| buffer.count_not_finite() == (0, 0)));
            outputs.iter().map(|(role, _)| role).collect()
        };
        let options = DeviceOptions { ignore_tuning: true, ..DeviceOptions::default() };
        let of_models = [Role::GradValue, Role::GradOffsets, Role::GradLogits];
        assert_eq!(written(options, &FROM_OFFSETS), of_models);
        let all = [Role::GradValue, Role::GradReferences, Role::GradOffsets, Role::GradLogits];
        assert_eq!(written(options.with_all_gradients(), &FROM_OFFSETS), all);
        let plain = [Role::GradValue, Role::GradLocations, Role::GradWeights];
        assert_eq!(written(options.with_all_gradients(), &ATTENTION), plain);
    }
}
