//! What a machine can run variants on. Commands know only these traits, so that another kind of
//! device is one more implementation and one more arm in [`open`].

mod bandwidth;
mod cpu;
mod cuda;
pub mod named;
mod processor;
mod step;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use msdeform::{ATTENTION, DeviceKind, Direction, Mode, Problem, Role, VariantSpec};
use msdeform_cuda::variants::{BackwardCall, Variant};
use msdeform_cuda::{Engine, Gradients};
use msdeform_tuning::{CallClass, Origin, Tuning};
use serde::{Deserialize, Serialize};

pub use bandwidth::Bandwidth;
pub use cpu::CpuDevice;
pub use cuda::CudaDevice;
pub use msdeform_cuda::driver::{broken_guards, guard_allocations};

use crate::{Buffer, HostTensors};

/// What can go wrong between a command and a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A device name nobody knows.
    #[error("unknown device `{name}`; known: cpu, cuda, cuda:0, cuda:1, ...")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// A device that is known but not there.
    #[error("device {device} is not available: {missing}")]
    Unavailable {
        /// The device asked for.
        device: DeviceId,
        /// What is missing and what to do about it.
        missing: String,
    },
    /// A variant that is not registered for the device.
    #[error("device {device} has no variant `{variant}`; it has: {}", known.join(", "))]
    UnknownVariant {
        /// The device.
        device: DeviceId,
        /// The id as given.
        variant: String,
        /// The ids it has.
        known: Vec<&'static str>,
    },
    /// A variant that cannot do this problem on this device.
    #[error("variant `{variant}` cannot do this: {reason}")]
    Unsupported {
        /// The variant.
        variant: &'static str,
        /// Why not.
        reason: String,
    },
    /// The variant ran, or tried to, and failed.
    #[error("variant `{variant}` failed: {source}")]
    Run {
        /// The variant.
        variant: &'static str,
        /// What it said.
        source: msdeform::Error,
    },
    /// A GPU, its driver or its compiler said no.
    #[error("variant `{variant}` failed on the GPU: {source}")]
    Cuda {
        /// The variant.
        variant: &'static str,
        /// What went wrong, and what to do about it.
        source: Box<msdeform_cuda::Error>,
    },
    /// A probe of a GPU failed.
    #[error("probing {device} failed: {source}")]
    Probe {
        /// The device.
        device: DeviceId,
        /// What went wrong, and what to do about it.
        source: Box<msdeform_cuda::Error>,
    },
    /// A variant that promises the same bits on every run, and broke the promise.
    #[error("variant `{variant}` gave other bits on a second run, in deterministic mode")]
    OtherBits {
        /// The variant.
        variant: String,
    },
    /// A number of threads that cannot be meant.
    #[error(
        "cannot run on {threads} threads: at least one is needed, and at most {most} are started"
    )]
    ThreadCount {
        /// Threads asked for.
        threads: usize,
        /// The most that are started.
        most: usize,
    },
    /// Worker threads could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}

/// A device by name: `cpu`, `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceId {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU by ordinal.
    Cuda(usize),
}

impl DeviceId {
    /// What kind of device it is.
    #[must_use]
    pub const fn kind(self) -> DeviceKind {
        match self {
            Self::Cpu => DeviceKind::Cpu,
            Self::Cuda(_) => DeviceKind::Cuda,
        }
    }
}

impl DeviceId {
    /// What a command uses unless told: the first GPU where there is one, else the processor.
    #[must_use]
    pub fn preferred() -> Self {
        match msdeform_cuda::device_count() {
            Ok(count) if count > 0 => Self::Cuda(0),
            _ => Self::Cpu,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceId {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown { name: name.to_owned() };
        match name {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                Ok(Self::Cuda(ordinal.parse().map_err(|_| unknown())?))
            }
        }
    }
}

/// What clock took the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// The wall clock around one call.
    Cpu,
    /// CUDA events around one launch.
    Events,
    /// Replay of a CUDA graph, divided by its launches.
    Graph,
}

impl Timing {
    /// The name used in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Events => "events",
            Self::Graph => "graph",
        }
    }
}

impl FromStr for Timing {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Cpu, Self::Events, Self::Graph]
            .into_iter()
            .find(|timing| timing.name() == name)
            .ok_or_else(|| format!("unknown clock `{name}`; known: cpu, events, graph"))
    }
}

/// Results of a run, brought to the host: every tensor that the operator writes, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs(Vec<(Role, Buffer)>);

impl Outputs {
    /// Buffers of NaN for the results of a problem.
    #[must_use]
    pub fn poisoned(problem: &Problem, direction: Direction) -> Self {
        let buffer = |role| Buffer::poisoned(problem.format_of(role), problem.len_of(role));
        ATTENTION.written(direction).map(|role| (role, buffer(role))).collect()
    }

    /// Every tensor.
    pub fn iter(&self) -> impl Iterator<Item = (Role, &Buffer)> {
        self.0.iter().map(|(role, buffer)| (*role, buffer))
    }

    /// Every tensor, to be written.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Role, &mut Buffer)> {
        self.0.iter_mut().map(|(role, buffer)| (*role, buffer))
    }

    /// Whether every bit of every tensor is the same.
    #[must_use]
    pub fn has_same_bits(&self, other: &Self) -> bool {
        let bits = |outputs: &Self| {
            outputs.iter().map(|(_, buffer)| buffer.to_le_bytes()).collect::<Vec<_>>()
        };
        bits(self) == bits(other)
    }

    /// Fills all of them with NaN.
    pub fn poison(&mut self) {
        self.iter_mut().for_each(|(_, buffer)| buffer.poison());
    }
}

impl IntoIterator for Outputs {
    type Item = (Role, Buffer);
    type IntoIter = std::vec::IntoIter<(Role, Buffer)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<(Role, Buffer)> for Outputs {
    fn from_iter<T: IntoIterator<Item = (Role, Buffer)>>(tensors: T) -> Self {
        Self(tensors.into_iter().collect())
    }
}

/// A variant with the knobs that are set; it chooses the others.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The variant.
    pub variant: &'static VariantSpec,
    /// Knobs that are set.
    pub knobs: BTreeMap<String, i64>,
}

impl Choice {
    /// A variant that chooses its knobs itself.
    #[must_use]
    pub const fn own(variant: &'static VariantSpec) -> Self {
        Self { variant, knobs: BTreeMap::new() }
    }
}

impl PartialEq for Choice {
    fn eq(&self, other: &Self) -> bool {
        self.variant.id == other.variant.id && self.knobs == other.knobs
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variant.id)?;
        self.knobs.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A knob of a variant as it stands for a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What the variant itself chooses.
    pub value: i64,
    /// What it could be.
    pub values: &'static [i64],
}

/// One measured ceiling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Its name, such as `dram_copy`; the same on every device that has it.
    pub name: String,
    /// The best that was reached.
    pub value: f64,
    /// What `value` counts.
    pub unit: String,
    /// What was done, in words.
    pub what: String,
}

/// A device that is there and ready.
pub trait Device: Send + Sync {
    /// Which one it is.
    fn id(&self) -> DeviceId;

    /// Folder of its records, such as `xeon-emerald-rapids-2c` or `h200`.
    fn slug(&self) -> &str;

    /// One line for people.
    fn name(&self) -> &str;

    /// Everything about the hardware and its drivers that explains a timing.
    fn facts(&self) -> BTreeMap<String, String>;

    /// What compiles for it and drives it, with versions and where it was found, for whoever reads a bug report. Not part
    /// of a record: paths are the user's own.
    fn software(&self) -> Option<String> {
        None
    }

    /// Worker threads, where that means something.
    fn threads(&self) -> Option<usize>;

    /// What is registered for this kind of device, whether or not this one can run it.
    fn variants(&self) -> Vec<&'static VariantSpec>;

    /// The variant that speed-ups are relative to.
    fn baseline(&self, direction: Direction) -> Option<&'static VariantSpec>;

    /// The variant that a user gets without asking and without a tuning file.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if none can do the problem.
    fn builtin(
        &self,
        problem: &Problem,
        direction: Direction,
    ) -> Result<&'static VariantSpec, DeviceError>;

    /// The variant that a user gets without asking: what a tuning file says, or else [`Device::builtin`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if none can do the problem.
    fn dispatch(
        &self,
        problem: &Problem,
        direction: Direction,
    ) -> Result<&'static VariantSpec, DeviceError>;

    /// Refuses, with the reason, what a variant cannot do on this device.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn supports(&self, variant: &VariantSpec, problem: &Problem) -> Result<(), DeviceError>;

    /// What was measured on this machine about which variant to use.
    fn tuning(&self) -> &Tuning;

    /// What a tuning file of this device says about itself.
    fn origin(&self) -> Origin;

    /// The class of calls that a measurement of this problem speaks for.
    fn class(&self, problem: &Problem, direction: Direction) -> CallClass;

    /// The knobs of a variant, and what it makes of them for a problem.
    fn settings(&self, _variant: &VariantSpec, _problem: &Problem) -> Vec<Setting> {
        Vec::new()
    }

    /// As [`Device::supports`], with knobs.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn admits(&self, choice: &Choice, problem: &Problem) -> Result<(), DeviceError> {
        self.supports(choice.variant, problem)
    }

    /// Compiles what these choices need, side by side, so that none waits for it later.
    fn compile(&self, _choices: &[Choice], _problem: &Problem) {}

    /// Everything a variant needs to run again and again: inputs in place, outputs allocated. The variant that a
    /// tuning file names for the problem has the knobs that it names.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn prepare<'a>(
        &self,
        variant: &VariantSpec,
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError>;

    /// As [`Device::prepare`], for one training step: a forward and then a backward, timed as one. Its
    /// outputs are the backward's.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn prepare_step<'a>(
        &self,
        forward: &VariantSpec,
        backward: &VariantSpec,
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError> {
        Ok(Box::new(step::PreparedStep {
            forward: self.prepare(forward, problem, inputs)?,
            backward: self.prepare(backward, problem, inputs)?,
        }))
    }

    /// The GPU that it is, for what is about GPUs alone: what is compiled for known models, the laboratory's probes.
    fn gpu(&self) -> Option<&Engine> {
        None
    }

    /// As [`Device::prepare`] with the variant's own knobs, for exactly this call of a GPU.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn prepare_call<'a>(
        &self,
        variant: &'static VariantSpec,
        _problem: &Problem,
        _backward: Option<BackwardCall>,
        _inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError> {
        let reason = "nothing is compiled on this device".to_owned();
        Err(DeviceError::Unsupported { variant: variant.id, reason })
    }

    /// What the device's memory can do, measured by a large copy.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn probe_bandwidth(&self) -> Result<Bandwidth, DeviceError>;

    /// What the device can do at best, each ceiling by a probe of its own. `before` is told each one's
    /// name as it starts. None on a GPU: its probes are kernels, and the laboratory's.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn ceilings(&self, _before: &mut dyn FnMut(&str)) -> Result<Vec<Ceiling>, DeviceError> {
        Ok(Vec::new())
    }
}

/// A variant ready to run on given inputs.
pub trait Prepared {
    /// Fills all outputs with NaN, so that what is not written cannot pass.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn poison(&mut self) -> Result<(), DeviceError>;

    /// Runs once and waits for the end.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn run(&mut self) -> Result<(), DeviceError>;

    /// Another variant of the same direction, on the same inputs and outputs, from now on.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn switch(&mut self, choice: &Choice) -> Result<(), DeviceError>;

    /// The outputs of the last run.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn read(&mut self) -> Result<Outputs, DeviceError>;

    /// Runs `count` times and returns the microseconds of each, by one of [`Prepared::clocks`].
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn time(&mut self, clock: Timing, count: usize) -> Result<Vec<f64>, DeviceError>;

    /// As [`Prepared::time`], without the steps whose results an earlier run left behind; `None` where
    /// there are none.
    ///
    /// # Errors
    /// Whatever the device says, typed.
    fn time_after_preparation(
        &mut self,
        _clock: Timing,
        _count: usize,
    ) -> Result<Option<Vec<f64>>, DeviceError> {
        Ok(None)
    }

    /// The clocks that show something about this problem, at least one.
    fn clocks(&self) -> Vec<Timing>;

    /// Whether every run must give the same bits.
    fn promises_same_bits(&self) -> bool;

    /// How the variant was run, where it can be run in more than one way; part of a record's key.
    fn mode(&self) -> &'static str;

    /// Bytes allocated beside inputs and outputs.
    fn workspace_bytes(&self) -> usize;
}

/// What a caller wants of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOptions {
    /// Worker threads of the processor; all cores unless said.
    pub threads: Option<usize>,
    /// What a GPU's backward promises about its last bits. A processor's are always the same.
    pub mode: Mode,
    /// Which gradients a GPU's backward computes; the others are left as they were.
    pub gradients: Gradients,
    /// The clock of a GPU: [`Timing::Events`] or [`Timing::Graph`]. Unless said, events, and for tiny
    /// problems both.
    pub timing: Option<Timing>,
    /// Flush the GPU's L2 before every timed run (single launches only).
    pub cold_l2: bool,
    /// Choose as if there were no tuning file.
    pub ignore_tuning: bool,
}

/// Opens a device. What a GPU can run is `of_gpu`: the product's registry, or the laboratory's.
///
/// # Errors
/// [`DeviceError::Unavailable`] saying what is missing.
pub fn open(
    id: DeviceId,
    options: DeviceOptions,
    of_gpu: &'static [&'static dyn Variant],
) -> Result<Box<dyn Device>, DeviceError> {
    match id {
        DeviceId::Cpu => Ok(Box::new(CpuDevice::new(options)?)),
        DeviceId::Cuda(ordinal) => Ok(Box::new(CudaDevice::new(ordinal, options, of_gpu)?)),
    }
}

/// Every variant of every kind of device, whether this machine can run it or not.
#[must_use]
pub fn registry(of_gpu: &[&'static dyn Variant]) -> Vec<&'static VariantSpec> {
    cpu::registered().chain(of_gpu.iter().map(|variant| variant.spec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_round_trip_and_typos_list_what_is_known() {
        for (name, id) in
            [("cpu", DeviceId::Cpu), ("cuda", DeviceId::Cuda(0)), ("cuda:3", DeviceId::Cuda(3))]
        {
            assert_eq!(name.parse::<DeviceId>().unwrap(), id);
        }
        for name in ["gpu", "cuda:", "cuda:x", "cuda:-1", ""] {
            let message = name.parse::<DeviceId>().unwrap_err().to_string();
            assert!(message.contains("cuda:0") && message.contains("cpu"), "{message}");
        }
    }

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
