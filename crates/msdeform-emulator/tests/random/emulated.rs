//! Cases on the emulator: the configurations that plans would launch.

use msdeform::{Access, Mode};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::{Configuration, Variant};
use msdeform_cuda_lab::REGISTRY;
use msdeform_devices::case::VariantChoice;
use msdeform_devices::guarded::tensors;
use msdeform_devices::runner::{
    Coverage, CudaRules, Fault, Phase, Ran, Resolved, Rules, Runner, Worker,
};
use msdeform_devices::{Case, HostTensors, Random, Wants};
use msdeform_emulator::{EmulatedKernel, Order, compiler_version};

use super::common::launch::{ConfiguredCall, compiled_apart};

/// GPUs of several sizes, because the same number of queries is many for one and few for another.
const MULTIPROCESSORS: [u32; 4] = [132, 2, 16, 1];

/// The emulator in the role of GPUs of several sizes.
pub struct EmulatedRunner {
    gpus: Vec<CudaRules>,
}

impl Default for EmulatedRunner {
    fn default() -> Self {
        let gpu = |multiprocessors| DeviceProps { multiprocessors, ..DeviceProps::h200() };
        Self { gpus: MULTIPROCESSORS.map(|count| CudaRules::new(gpu(count), REGISTRY)).to_vec() }
    }
}

impl EmulatedRunner {
    /// The GPU of a case: the same for all sizes of a model, which share their kernels.
    fn gpu(&self, case: &Case) -> &CudaRules {
        let problem = &case.problem;
        let of_model = problem.heads() + problem.channels() + problem.samples();
        &self.gpus[of_model % self.gpus.len()]
    }
}

impl Rules for EmulatedRunner {
    fn choose(&self, case: &Case, random: &mut Random) -> Option<VariantChoice> {
        self.gpu(case).choose(case, random)
    }

    fn resolve(&self, case: &Case) -> Result<Resolved, String> {
        self.gpu(case).resolve(case)
    }

    fn universe(&self) -> Coverage {
        self.gpus[0].universe()
    }
}

impl Runner for EmulatedRunner {
    fn rules(&self) -> &dyn Rules {
        self
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, String> {
        compiler_version().map_err(|error| error.to_string())?;
        Ok(Box::new(EmulatedWorker { runner: self }))
    }
}

struct EmulatedWorker<'a> {
    runner: &'a EmulatedRunner,
}

impl Worker for EmulatedWorker<'_> {
    fn run(
        &mut self,
        case: &Case,
        inputs: &HostTensors,
        phase: &mut dyn FnMut(Phase),
    ) -> Result<Ran, Fault> {
        let gpu = self.runner.gpu(case);
        let configured = gpu.configure(case).map_err(Fault::Refused)?;
        let Some((variant, configuration)) = configured else { return Ok(nothing_launched(case)) };
        let id = variant.spec().id;
        let apart = compiled_apart(variant, &configuration, &case.call(gpu.device()));
        let entries: Vec<String> = apart.iter().flat_map(|part| part.entries.clone()).collect();
        let compiled = apart.iter().map(EmulatedKernel::compile).collect::<Result<Vec<_>, _>>();
        let compiled = compiled.map_err(|error| Fault::Failed(error.to_string()))?;
        let kernel = compiled.into_iter().reduce(EmulatedKernel::and);
        let kernel = kernel.ok_or_else(|| Fault::Failed(format!("{id} launches nothing")))?;
        phase(Phase::Running);
        let run = |turn: u64| {
            let prepared = ConfiguredCall {
                id,
                entries: &entries,
                case,
                inputs,
                device: gpu.device(),
                configuration: &configuration,
                order: Order::ALL[(case.seed + turn) as usize % 3],
                block_order: Order::ALL[(case.seed / 3 + turn) as usize % 3],
            };
            let written = kernel.launch(&prepared.launch());
            let mut written = written.map_err(|error| Fault::Failed(error.to_string()))?;
            if has_workspace(&configuration) {
                written.pop();
            }
            Ok::<_, Fault>(written)
        };
        let written = run(0)?;
        if promises_the_same_bits(variant, case) && run(1)? != written {
            return Err(Fault::Failed("another order of threads gives different bits".to_owned()));
        }
        Ok(Ran { written, launches: configuration.pipeline.launches().count() as u64 })
    }
}

fn has_workspace(configuration: &Configuration) -> bool {
    configuration.pipeline.workspace_bytes > 0
}

fn promises_the_same_bits(variant: &dyn Variant, case: &Case) -> bool {
    let is_backward = case.wants != Wants::Output;
    is_backward && case.mode == Mode::Deterministic && variant.is_deterministic()
}

/// The results of a plan that has nothing to compute: zeros.
fn nothing_launched(case: &Case) -> Ran {
    let written = tensors(case).filter(|(_, access)| *access == Access::Write);
    let zeros = written.map(|(role, _)| vec![0; case.problem.bytes_of(role)]);
    Ran { written: zeros.collect(), launches: 0 }
}
