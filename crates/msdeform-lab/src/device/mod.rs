//! Devices that run variants. Commands know only these traits, so that another kind of device is one more
//! implementation and one more arm in [`open`].

mod bandwidth;
pub(crate) mod cpu;
mod cpu_facts;
mod cuda;
mod error;
mod id;
pub mod named;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use msdeform::{BackwardCall, Direction, Gradients, Mode, Problem, VariantSpec};
use msdeform_cuda::tuning::{CallClass, Origin, Tuning};
use msdeform_cuda::variants::Variant;
use serde::{Deserialize, Serialize};

pub use bandwidth::Bandwidth;
pub use cpu::CpuDevice;
pub use cuda::CudaDevice;
pub use error::DeviceError;
pub use id::DeviceId;
pub use msdeform_cuda::{broken_guards, guard_allocations};

use crate::HostTensors;
use crate::names::named;
use crate::runner::Runner;

pub(crate) type Result<T, E = DeviceError> = std::result::Result<T, E>;

/// A call that is ready to run.
pub type Ready<'a> = Box<dyn Prepared + 'a>;

named! {
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Timing "clock" {
        /// The wall clock around one call.
        Cpu "cpu",
        /// CUDA events around one launch.
        Events "events",
        /// Replay of a CUDA graph, divided by its launches.
        Graph "graph",
    }
}

/// A variant with the knobs that are set; it chooses the others.
#[derive(Clone, Debug)]
pub struct KnobbedVariant {
    pub variant: &'static VariantSpec,
    pub knobs: BTreeMap<String, i64>,
}

impl KnobbedVariant {
    pub const fn own(variant: &'static VariantSpec) -> Self {
        Self { variant, knobs: BTreeMap::new() }
    }
}

impl PartialEq for KnobbedVariant {
    fn eq(&self, other: &Self) -> bool {
        self.variant.id == other.variant.id && self.knobs == other.knobs
    }
}

impl fmt::Display for KnobbedVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variant.id)?;
        self.knobs.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A knob of a variant as it stands for a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// What the variant itself chooses.
    pub value: i64,
    pub values: &'static [i64],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Its name, such as `dram_copy`; the same on every device that has it.
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub what: String,
}

pub trait Device: Any + Send + Sync {
    fn id(&self) -> DeviceId;

    /// Folder of its records, such as `xeon-emerald-rapids-2c` or `h200`.
    fn slug(&self) -> &str;

    fn name(&self) -> &str;

    /// Everything about the hardware and its drivers that explains a timing.
    fn facts(&self) -> BTreeMap<String, String>;

    /// Driver and compiler with their versions and paths, for bug reports. Not part of a record, because paths are private.
    fn software(&self) -> Option<String> {
        None
    }

    /// Worker threads, where that means something.
    fn threads(&self) -> Option<usize> {
        None
    }

    fn runner(&self) -> &dyn Runner;

    /// What is registered for this kind of device, whether or not this one can run it.
    fn variants(&self) -> Vec<&'static VariantSpec>;

    /// The variant that speed-ups are relative to: the first of a direction, unless a device has another.
    fn baseline(&self, direction: Direction) -> Option<&'static VariantSpec> {
        self.variants().into_iter().find(|spec| spec.direction == direction)
    }

    /// The variant that dispatch chooses without a tuning file.
    fn builtin(&self, problem: &Problem, direction: Direction) -> Result<&'static VariantSpec>;

    /// The variant that dispatch chooses: that of a tuning file, or else [`Device::builtin`].
    fn dispatch(&self, problem: &Problem, direction: Direction) -> Result<&'static VariantSpec> {
        self.builtin(problem, direction)
    }

    /// Whether a variant takes a problem on this device.
    fn supports(&self, variant: &VariantSpec, problem: &Problem) -> Result<()>;

    fn tuning(&self) -> &Tuning;

    /// The origin that a tuning file of this device states.
    fn origin(&self) -> Origin;

    /// The class of calls that a measurement of this problem speaks for.
    fn class(&self, problem: &Problem, direction: Direction) -> CallClass;

    /// The knobs of a variant, and what it makes of them for a problem.
    fn settings(&self, _variant: &VariantSpec, _problem: &Problem) -> Vec<Setting> {
        Vec::new()
    }

    /// As [`Device::supports`], with knobs.
    fn admits(&self, choice: &KnobbedVariant, problem: &Problem) -> Result<()> {
        self.supports(choice.variant, problem)
    }

    /// Compiles what these choices need, side by side, so that none waits for it later.
    fn compile(&self, _choices: &[KnobbedVariant], _problem: &Problem) {}

    /// Has what a variant needs compiled in the background, without a word to the device: calls can be timed meanwhile.
    /// Returns at once.
    fn compile_later(&self, _variant: &VariantSpec, _problem: &Problem) {}

    /// Everything a variant needs to run again and again: inputs in place, outputs allocated. The variant that a
    /// tuning file names for the problem has the knobs that it names.
    /// Of several variants, a forward and a backward as one training step, every run has all of them in turn; outputs are
    /// those of the last.
    fn prepare<'a>(
        &self,
        variants: &[&VariantSpec],
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Ready<'a>>;

    /// As [`Device::prepare`] with the variant's own knobs, for exactly this call of a GPU.
    fn prepare_call<'a>(
        &self,
        variant: &'static VariantSpec,
        _problem: &Problem,
        _backward: Option<BackwardCall>,
        _inputs: &'a HostTensors,
    ) -> Result<Ready<'a>> {
        Err(DeviceError::unsupported(variant.id, &"nothing is compiled on this device"))
    }

    /// What the device's memory can do, measured by a large copy.
    fn probe_bandwidth(&self) -> Result<Bandwidth>;

    /// What the device can do at best, each ceiling by a probe of its own. `before` is told each one's
    /// name as it starts. None on a GPU: its probes are kernels, and the laboratory's.
    fn ceilings(&self, _before: &mut dyn FnMut(&str)) -> Result<Vec<Ceiling>> {
        Ok(Vec::new())
    }
}

/// A call ready to run on given inputs: the one interface by which calls are run, compared and timed.
pub trait Prepared {
    /// Fills all outputs with NaN, so that what is not written cannot pass.
    fn poison(&mut self) -> Result<()>;

    /// Runs once and waits for the end.
    fn run(&mut self) -> Result<()>;

    fn read(&mut self) -> Result<HostTensors>;

    /// Another variant of the same direction, on the same inputs and outputs, from now on.
    fn switch(&mut self, choice: &KnobbedVariant) -> Result<()> {
        Err(DeviceError::unsupported(choice.variant.id, &"this call cannot change its variant"))
    }

    /// Runs `count` times and returns the microseconds of each, by one of [`Prepared::clocks`].
    fn time(&mut self, _clock: Timing, count: usize) -> Result<Vec<f64>> {
        let once = |_| {
            let start = Instant::now();
            self.run()?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        (0..count).map(once).collect()
    }

    /// As [`Prepared::time`], without the steps whose results an earlier run left behind; `None` where
    /// there are none.
    fn time_after_preparation(
        &mut self,
        _clock: Timing,
        _count: usize,
    ) -> Result<Option<Vec<f64>>> {
        Ok(None)
    }

    /// The clocks that show something about this problem, at least one.
    fn clocks(&self) -> Vec<Timing> {
        vec![Timing::Cpu]
    }

    /// Whether results must be bitwise reproducible.
    fn is_reproducible(&self) -> bool;

    /// How the variant was run, where it can be run in more than one way; part of a record's key.
    fn mode(&self) -> &'static str {
        "default"
    }

    /// Bytes allocated on top of inputs and outputs.
    fn workspace_bytes(&self) -> usize {
        0
    }

    fn launches(&self) -> u64 {
        1
    }

    /// Runs twice, on poisoned outputs: what a first run leaves behind (workspace, zeroing) must not change the
    /// second, and a bitwise reproducible variant must give the same result twice.
    fn run_twice(&mut self, variant: &str) -> Result<HostTensors> {
        let mut run = || {
            self.poison()?;
            self.run()?;
            self.read()
        };
        let (first, second) = (run()?, run()?);
        if self.is_reproducible() && first != second {
            return Err(DeviceError::OtherBits { variant: variant.to_owned() });
        }
        Ok(second)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOptions {
    /// Worker threads of a CPU; all cores by default.
    pub threads: Option<usize>,
    /// Whether a GPU's backward is bitwise reproducible. A CPU's always is.
    pub mode: Mode,
    /// Which gradients a backward computes; only those are among its outputs. By default all but those of references.
    pub gradients: Gradients,
    /// The clock of a GPU: [`Timing::Events`] or [`Timing::Graph`]. By default events, and for tiny
    /// problems both.
    pub timing: Option<Timing>,
    /// Flush the GPU's L2 before every timed run (single launches only).
    pub cold_l2: bool,
    /// Choose as if there were no tuning file.
    pub ignore_tuning: bool,
}

impl DeviceOptions {
    /// Every gradient that there is, also those of references.
    #[must_use]
    pub const fn with_all_gradients(self) -> Self {
        Self { gradients: Gradients { references: true, ..Gradients::ALL }, ..self }
    }

    /// The gradients that a problem has of those.
    const fn gradients_of(&self, problem: &Problem) -> Gradients {
        let references = self.gradients.references && problem.offsets().is_some();
        Gradients { references, ..self.gradients }
    }
}

/// Opens a device. What a GPU can run is `of_gpu`: the product's registry, or the laboratory's.
pub fn open(
    id: DeviceId,
    options: DeviceOptions,
    of_gpu: &'static [&'static Variant],
) -> Result<Box<dyn Device>> {
    match id {
        DeviceId::Cpu => Ok(Box::new(CpuDevice::new(options)?)),
        DeviceId::Cuda(ordinal) => Ok(Box::new(CudaDevice::new(ordinal, options, of_gpu)?)),
    }
}

/// Every variant of every kind of device, whether this machine can run it or not.
pub fn registry(of_gpu: &[&'static Variant]) -> Vec<&'static VariantSpec> {
    cpu::registered().chain(of_gpu.iter().map(|variant| variant.spec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_ids_are_unique() {
        let mut ids: Vec<&str> =
            registry(msdeform_cuda_lab::REGISTRY).iter().map(|spec| spec.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!(count > 0);
    }
}
