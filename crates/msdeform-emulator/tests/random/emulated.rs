//! Cases on the emulator: the configurations that plans would launch.

use msdeform::{Access, Mode};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::{Configuration, Variant};
use msdeform_cuda_lab::REGISTRY;
use msdeform_emulator::{EmulatedKernel, Order};
use msdeform_lab::case::VariantChoice;
use msdeform_lab::device::{DeviceError, Prepared, Ready};
use msdeform_lab::runner::{Coverage, CudaRules, Resolved, Rules, Runner};
use msdeform_lab::{Buffer, Case, HostTensors, Random};

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

    fn prepare<'a>(
        &'a self,
        case: &'a Case,
        inputs: &'a HostTensors,
    ) -> Result<Ready<'a>, DeviceError> {
        let device = self.gpu(case).device();
        let refused = |reason| DeviceError::Refused { reason };
        let failed = |reason| DeviceError::Failed { reason };
        let configured = self.gpu(case).configure(case).map_err(refused)?;
        let compiled = configured.map(|(variant, configuration)| {
            let apart = compiled_apart(variant, &configuration, &case.call(device));
            let entries = apart.iter().flat_map(|part| part.entries.clone()).collect();
            let kernels = apart.iter().map(EmulatedKernel::compile).collect::<Result<Vec<_>, _>>();
            let kernels = kernels.map_err(|error| failed(error.to_string()))?.into_iter();
            let id = variant.spec.id;
            let kernel = kernels.reduce(EmulatedKernel::and);
            let kernel = kernel.ok_or_else(|| failed(format!("{id} launches nothing")))?;
            Ok::<_, DeviceError>(Compiled { variant, configuration, entries, kernel })
        });
        let compiled = compiled.transpose()?;
        Ok(Box::new(Emulated {
            case,
            inputs,
            device,
            compiled,
            turn: 0,
            found: nothing_launched(case),
        }))
    }
}

/// What a case launches.
struct Compiled {
    variant: &'static Variant,
    configuration: Configuration,
    entries: Vec<String>,
    kernel: EmulatedKernel,
}

struct Emulated<'a> {
    case: &'a Case,
    inputs: &'a HostTensors,
    device: &'a DeviceProps,
    compiled: Option<Compiled>,
    /// Each run takes another order of threads and blocks.
    turn: u64,
    found: HostTensors,
}

impl Prepared for Emulated<'_> {
    /// A launch brings poisoned outputs of its own.
    fn poison(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), DeviceError> {
        let Some(Compiled { variant, configuration, entries, kernel }) = &self.compiled else {
            return Ok(());
        };
        let (case, turn) = (self.case, self.turn);
        self.turn += 1;
        let prepared = ConfiguredCall {
            id: variant.spec.id,
            entries,
            case,
            inputs: self.inputs,
            device: self.device,
            configuration,
            order: Order::ALL[(case.seed + turn) as usize % 3],
            block_order: Order::ALL[(case.seed / 3 + turn) as usize % 3],
        };
        let written = kernel.launch(&prepared.launch());
        let written = written.map_err(|error| DeviceError::Failed { reason: error.to_string() })?;
        // Behind the tensors may be a workspace.
        for ((_, tensor), bytes) in self.found.iter_mut().zip(written) {
            *tensor = Buffer::from_le_bytes(tensor.dtype(), &bytes);
        }
        Ok(())
    }

    fn read(&mut self) -> Result<HostTensors, DeviceError> {
        Ok(self.found.clone())
    }

    fn is_reproducible(&self) -> bool {
        let is_backward = self.case.wants.is_some();
        let promised = |compiled: &Compiled| compiled.variant.is_deterministic;
        is_backward
            && self.case.mode == Mode::Deterministic
            && self.compiled.as_ref().is_some_and(promised)
    }

    fn launches(&self) -> u64 {
        let launches = |of: &Compiled| of.configuration.pipeline.launches().count() as u64;
        self.compiled.as_ref().map_or(0, launches)
    }
}

/// The results of a plan that has nothing to compute: zeros.
fn nothing_launched(case: &Case) -> HostTensors {
    let written = case.tensors().filter(|(_, access)| *access == Access::Write);
    let zeros = |role| {
        let problem = &case.problem;
        Buffer::from_le_bytes(problem.format_of(role), &vec![0; problem.bytes_of(role)])
    };
    written.map(|(role, _)| (role, zeros(role))).collect()
}
