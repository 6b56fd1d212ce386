//! An NVIDIA GPU as a device.
//!
//! Two clocks. Events around a single launch show what a large call takes; the launches before it are
//! not timed and keep the GPU busy while the processor queues the timed one, so that no queueing is
//! measured. A call of a few microseconds is not much longer than the events themselves: there a graph of
//! many launches is replayed too and the time divided ([`GRAPH_BELOW_SAMPLES`]), both beside each other.
//!
//! L2 is warm (the inputs of the timed run are those of the run before) unless the caller asks for cold;
//! the mode of a record says which.

use std::collections::BTreeMap;

use half::{bf16, f16};
use msdeform::{Direction, Mode, Problem, VariantSpec};
use msdeform_cuda::variants::{Call, Variant};
use msdeform_cuda::{
    BackwardOptions, BackwardPlan, BackwardPointers, DeviceBuffer, DevicePointers, Engine, Error,
    Event, ForwardPlan, Graph, PlanOptions, REGISTRY, Stream, dispatch, registry,
};

use super::{Bandwidth, Device, DeviceError, DeviceId, DeviceOptions, Outputs, Prepared, Timing};
use crate::{Buffer, Ceiling, HostTensors};

/// Problems with fewer samples (over all images, queries and heads) are timed by graph replay as well: the
/// decoders, some 10 us and less, are below, the encoders above.
const GRAPH_BELOW_SAMPLES: usize = 500_000;

/// Launches of a graph: enough to divide the cost of starting it away.
const LAUNCHES_PER_GRAPH: usize = 20;

/// Launches before a timed one. See above.
const HEAD_START_LAUNCHES: usize = 2;

/// What the memory probe copies: far more than any L2.
const PROBE_BYTES: usize = 1 << 30;
const PROBE_PASSES: usize = 5;

/// One GPU.
#[derive(Debug)]
pub struct CudaDevice {
    engine: Engine,
    options: DeviceOptions,
    slug: String,
    name: String,
}

/// The values that a knob takes, if all of these variants have it.
pub(super) fn knob_values(
    name: &str,
    variants: &[&VariantSpec],
) -> Option<(&'static str, &'static [i64])> {
    let of_variant = |spec: &&VariantSpec| {
        let variant = registry::find(spec.id).ok()?;
        let knob = variant.knobs().iter().find(|knob| knob.name.eq_ignore_ascii_case(name))?;
        Some((knob.name, knob.values))
    };
    let mut found = variants.iter().map(of_variant);
    let first = found.next()??;
    found.all(|other| other == Some(first)).then_some(first)
}

pub(super) fn registered() -> impl Iterator<Item = &'static VariantSpec> {
    REGISTRY.iter().map(|variant| variant.spec())
}

impl CudaDevice {
    /// Opens a GPU by its number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] with what is missing and what to do.
    pub fn new(ordinal: usize, options: DeviceOptions) -> Result<Self, DeviceError> {
        let engine = Engine::new(ordinal).map_err(|error| DeviceError::Unavailable {
            device: DeviceId::Cuda(ordinal),
            missing: error.to_string(),
        })?;
        let name = engine.context().props().name.clone();
        Ok(Self { engine, options, slug: slug(&name), name })
    }

    /// The call of a problem, in the mode that was asked for.
    fn call<'a>(&'a self, direction: Direction, problem: &'a Problem) -> Call<'a> {
        let mut call = Call::in_direction(direction, problem, self.engine.context().props());
        if let Some(backward) = &mut call.backward {
            backward.mode = self.options.mode;
        }
        call
    }

    fn find(&self, spec: &VariantSpec) -> Result<&'static dyn Variant, DeviceError> {
        registry::find(spec.id).map_err(|_| DeviceError::UnknownVariant {
            device: self.id(),
            variant: spec.id.to_owned(),
            known: registered().map(|spec| spec.id).collect(),
        })
    }
}

/// The folder of a GPU's records: `NVIDIA H200` is `h200`.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("nvidia"));
    let slug = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    if slug.is_empty() { "gpu".to_owned() } else { slug }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(self.engine.context().ordinal())
    }

    fn slug(&self) -> &str {
        &self.slug
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let props = self.engine.context().props();
        let (major, minor) = props.compute_capability;
        let nvrtc = self.engine.nvrtc().map(|nvrtc| nvrtc.version().to_string());
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
            ("driver_cuda", self.engine.context().driver().to_string()),
            ("nvrtc", nvrtc.unwrap_or_else(|_| "missing".to_owned())),
        ];
        facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn variants(&self) -> Vec<&'static VariantSpec> {
        registered().collect()
    }

    fn baseline(&self, direction: Direction) -> Option<&'static VariantSpec> {
        registry::baseline(direction).map(Variant::spec)
    }

    fn dispatch(
        &self,
        problem: &Problem,
        direction: Direction,
    ) -> Result<&'static VariantSpec, DeviceError> {
        let call = self.call(direction, problem);
        let chosen = match direction {
            Direction::Forward => dispatch::forward(&call),
            Direction::Backward => dispatch::backward(&call),
        };
        self.supports(chosen.spec(), problem)?;
        Ok(chosen.spec())
    }

    fn supports(&self, spec: &VariantSpec, problem: &Problem) -> Result<(), DeviceError> {
        let variant = self.find(spec)?;
        let refuse = |reason| Err(DeviceError::Unsupported { variant: variant.spec().id, reason });
        match variant.check(&self.call(variant.spec().direction, problem)) {
            Ok(()) => Ok(()),
            Err(msdeform::Error::Unsupported { reason, .. }) => refuse(reason),
            Err(other) => refuse(other.to_string()),
        }
    }

    fn prepare<'a>(
        &self,
        spec: &VariantSpec,
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError> {
        let spec = self.find(spec)?.spec();
        let prepared = PreparedCuda::new(&self.engine, &[spec], problem, inputs, self.options);
        Ok(Box::new(prepared.map_err(|source| failed(spec, source))?))
    }

    fn prepare_step<'a>(
        &self,
        forward: &VariantSpec,
        backward: &VariantSpec,
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError> {
        let specs = [self.find(forward)?.spec(), self.find(backward)?.spec()];
        let prepared = PreparedCuda::new(&self.engine, &specs, problem, inputs, self.options);
        Ok(Box::new(prepared.map_err(|source| failed(specs[0], source))?))
    }

    fn probe_bandwidth(&self) -> Result<Bandwidth, DeviceError> {
        probe(&self.engine).map_err(|source| DeviceError::Unavailable {
            device: self.id(),
            missing: source.to_string(),
        })
    }

    fn ceilings(&self, before: &mut dyn FnMut(&str)) -> Result<Vec<Ceiling>, DeviceError> {
        let failed =
            |source: Error| DeviceError::Probe { device: self.id(), source: Box::new(source) };
        let found = msdeform_cuda::probe::ceilings(&self.engine, before).map_err(failed)?;
        let owned = |ceiling: msdeform_cuda::probe::Ceiling| Ceiling {
            name: ceiling.name.to_owned(),
            value: ceiling.value,
            unit: ceiling.unit.to_owned(),
            what: ceiling.what.to_owned(),
        };
        Ok(found.into_iter().map(owned).collect())
    }
}

fn failed(spec: &VariantSpec, source: Error) -> DeviceError {
    DeviceError::Cuda { variant: spec.id, source: Box::new(source) }
}

/// Times device-to-device copies.
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

/// A [`Buffer`] in device memory.
#[derive(Debug)]
enum DeviceTensor {
    F32(DeviceBuffer<f32>),
    F16(DeviceBuffer<f16>),
    Bf16(DeviceBuffer<bf16>),
}

/// Runs the same expression for whichever buffer a tensor holds.
macro_rules! each {
    ($tensor:expr, $buffer:ident => $body:expr) => {
        match $tensor {
            DeviceTensor::F32($buffer) => $body,
            DeviceTensor::F16($buffer) => $body,
            DeviceTensor::Bf16($buffer) => $body,
        }
    };
}

impl DeviceTensor {
    /// A copy of a host tensor. `None` for the reference's own format, which no kernel stores.
    fn upload(stream: &Stream, host: &Buffer) -> Result<Option<Self>, Error> {
        Ok(match host {
            Buffer::F32(elements) => Some(Self::F32(DeviceBuffer::from_host(stream, elements)?)),
            Buffer::F16(elements) => Some(Self::F16(DeviceBuffer::from_host(stream, elements)?)),
            Buffer::Bf16(elements) => Some(Self::Bf16(DeviceBuffer::from_host(stream, elements)?)),
            Buffer::F64(_) => None,
        })
    }

    fn download(&self, stream: &Stream) -> Result<Buffer, Error> {
        Ok(match self {
            Self::F32(buffer) => Buffer::F32(buffer.to_host(stream)?),
            Self::F16(buffer) => Buffer::F16(buffer.to_host(stream)?),
            Self::Bf16(buffer) => Buffer::Bf16(buffer.to_host(stream)?),
        })
    }

    /// Every byte 0xff: NaN in every format.
    fn poison(&mut self, stream: &Stream) -> Result<(), Error> {
        each!(self, buffer => buffer.fill(stream, 0xff))
    }

    fn address(&self) -> u64 {
        each!(self, buffer => buffer.address())
    }
}

/// What is launched, in order: one direction, or a forward and a backward as one training step.
enum Work {
    Forward {
        plan: Box<ForwardPlan>,
        output: DeviceTensor,
    },
    Backward {
        plan: Box<BackwardPlan>,
        grad_output: DeviceTensor,
        grad_value: DeviceTensor,
        grad_locations: DeviceTensor,
        grad_weights: DeviceTensor,
        mode: Mode,
    },
}

impl Work {
    fn new(
        engine: &Engine,
        spec: &'static VariantSpec,
        problem: &Problem,
        DeviceOptions { mode, knob, .. }: DeviceOptions,
        grad_output: &Buffer,
        upload: &impl Fn(&Buffer) -> Result<DeviceTensor, Error>,
    ) -> Result<Self, Error> {
        let knobs = knob.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let named = PlanOptions { variant: Some(spec.id.to_owned()), knobs, ..Default::default() };
        Ok(match Outputs::poisoned(problem, spec.direction) {
            Outputs::Forward { output } => Self::Forward {
                plan: Box::new(ForwardPlan::new(engine, problem, &named)?),
                output: upload(&output)?,
            },
            Outputs::Backward { value, locations, weights } => {
                let options = BackwardOptions { plan: named, mode, ..Default::default() };
                Self::Backward {
                    plan: Box::new(BackwardPlan::new(engine, problem, &options)?),
                    grad_output: upload(grad_output)?,
                    grad_value: upload(&value)?,
                    grad_locations: upload(&locations)?,
                    grad_weights: upload(&weights)?,
                    mode,
                }
            }
        })
    }

    fn outputs(&mut self) -> Vec<&mut DeviceTensor> {
        match self {
            Self::Forward { output, .. } => vec![output],
            Self::Backward { grad_value, grad_locations, grad_weights, .. } => {
                vec![grad_value, grad_locations, grad_weights]
            }
        }
    }

    fn download(&self, stream: &Stream) -> Result<Outputs, Error> {
        Ok(match self {
            Self::Forward { output, .. } => Outputs::Forward { output: output.download(stream)? },
            Self::Backward { grad_value, grad_locations, grad_weights, .. } => Outputs::Backward {
                value: grad_value.download(stream)?,
                locations: grad_locations.download(stream)?,
                weights: grad_weights.download(stream)?,
            },
        })
    }
}

struct PreparedCuda {
    // Dropped in this order: the graph before what it uses.
    graph: Option<Graph>,
    work: Vec<Work>,
    value: DeviceTensor,
    locations: DeviceTensor,
    weights: DeviceTensor,
    /// Written before every timed run where L2 should be cold.
    flush: Option<DeviceBuffer<f32>>,
    start: Event,
    end: Event,
    stream: Stream,
    clocks: Vec<Timing>,
    spec: &'static VariantSpec,
}

impl PreparedCuda {
    /// The given variants, launched one after the other.
    fn new(
        engine: &Engine,
        specs: &[&'static VariantSpec],
        problem: &Problem,
        inputs: &HostTensors,
        options: DeviceOptions,
    ) -> Result<Self, Error> {
        let context = engine.context();
        let stream = Stream::new(context)?;
        let spec = specs[specs.len() - 1];
        let upload = |host: &Buffer| {
            DeviceTensor::upload(&stream, host)?.ok_or_else(|| {
                let reason = "tensors are f64, which only the reference computes".to_owned();
                Error::from(msdeform::Error::Unsupported { variant: spec.id, reason })
            })
        };
        let samples = problem.batch() * problem.queries() * problem.heads() * problem.samples();
        let clocks = match options.timing {
            // A graph's launches follow each other: nothing can flush between them.
            _ if options.cold_l2 => vec![Timing::Events],
            Some(clock) => vec![clock],
            None if samples < GRAPH_BELOW_SAMPLES => vec![Timing::Graph, Timing::Events],
            None => vec![Timing::Events],
        };
        let flush_elements = 2 * context.props().l2_bytes / size_of::<f32>();
        let flush = options.cold_l2.then(|| DeviceBuffer::filled(&stream, flush_elements, 0));
        let work = specs
            .iter()
            .map(|&spec| Work::new(engine, spec, problem, options, &inputs.grad_output, &upload));
        Ok(Self {
            graph: None,
            work: work.collect::<Result<_, _>>()?,
            value: upload(&inputs.value)?,
            locations: upload(&inputs.locations)?,
            weights: upload(&inputs.weights)?,
            flush: flush.transpose()?,
            start: Event::new(context)?,
            end: Event::new(context)?,
            stream,
            clocks,
            spec,
        })
    }

    /// Every tensor and workspace is this value's own, of the problem that the plans were made for, and
    /// outlives what is queued: freeing memory waits for the kernels that use it. One stream orders all
    /// launches, and nothing else touches the outputs.
    fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let (value, locations) = (self.value.address(), self.locations.address());
        let weights = self.weights.address();
        for work in &self.work {
            match work {
                Work::Forward { plan, output } => {
                    let output = output.address();
                    let pointers = DevicePointers { value, locations, weights, output };
                    // SAFETY: see above.
                    unsafe { plan.launch(stream, pointers) }?;
                }
                Work::Backward {
                    plan,
                    grad_output,
                    grad_value,
                    grad_locations,
                    grad_weights,
                    ..
                } => {
                    let pointers = BackwardPointers {
                        value,
                        locations,
                        weights,
                        grad_output: grad_output.address(),
                        grad_value: grad_value.address(),
                        grad_locations: grad_locations.address(),
                        grad_weights: grad_weights.address(),
                        workspace: 0,
                    };
                    // SAFETY: see above.
                    unsafe { plan.launch(stream, pointers) }?;
                }
            }
        }
        Ok(())
    }

    fn is_deterministic_backward(&self) -> bool {
        let deterministic =
            |work: &Work| matches!(work, Work::Backward { mode: Mode::Deterministic, .. });
        self.work.iter().any(deterministic)
    }

    fn time_launch(&mut self) -> Result<f64, Error> {
        for _ in 0..HEAD_START_LAUNCHES {
            self.launch(&self.stream)?;
        }
        if let Some(flush) = &mut self.flush {
            flush.fill(&self.stream, 1)?;
        }
        self.start.record(&self.stream)?;
        self.launch(&self.stream)?;
        self.end.record(&self.stream)?;
        self.end.synchronize()?;
        self.end.elapsed_us_since(&self.start)
    }

    fn time_graph(&mut self) -> Result<f64, Error> {
        if self.graph.is_none() {
            self.graph = Some(Graph::capture(&self.stream, |stream| {
                (0..LAUNCHES_PER_GRAPH).try_for_each(|_| self.launch(stream))
            })?);
        }
        let Some(graph) = &self.graph else { return Ok(f64::NAN) };
        // SAFETY: what was captured is this value's own and outlives the replays, see `launch`.
        unsafe { graph.launch(&self.stream) }?;
        self.start.record(&self.stream)?;
        // SAFETY: as above.
        unsafe { graph.launch(&self.stream) }?;
        self.end.record(&self.stream)?;
        self.end.synchronize()?;
        Ok(self.end.elapsed_us_since(&self.start)? / LAUNCHES_PER_GRAPH as f64)
    }
}

impl Prepared for PreparedCuda {
    fn poison(&mut self) -> Result<(), DeviceError> {
        let mut outputs = self.work.iter_mut().flat_map(Work::outputs);
        outputs
            .try_for_each(|output| output.poison(&self.stream))
            .map_err(|source| failed(self.spec, source))
    }

    fn run(&mut self) -> Result<(), DeviceError> {
        self.launch(&self.stream)
            .and_then(|()| self.stream.synchronize())
            .map_err(|source| failed(self.spec, source))
    }

    fn read(&mut self) -> Result<Outputs, DeviceError> {
        let last = &self.work[self.work.len() - 1];
        last.download(&self.stream).map_err(|source| failed(self.spec, source))
    }

    fn promises_same_bits(&self) -> bool {
        self.is_deterministic_backward()
    }

    fn time(&mut self, clock: Timing, count: usize) -> Result<Vec<f64>, DeviceError> {
        let once = |_| match clock {
            Timing::Graph => self.time_graph(),
            _ => self.time_launch(),
        };
        (0..count).map(once).collect::<Result<_, _>>().map_err(|source| failed(self.spec, source))
    }

    fn clocks(&self) -> Vec<Timing> {
        self.clocks.clone()
    }

    fn mode(&self) -> &'static str {
        match (self.flush.is_some(), self.is_deterministic_backward()) {
            (false, false) => "warm_l2",
            (true, false) => "cold_l2",
            (false, true) => "deterministic_warm_l2",
            (true, true) => "deterministic_cold_l2",
        }
    }

    fn workspace_bytes(&self) -> usize {
        let bytes = |work: &Work| match work {
            Work::Forward { .. } => 0,
            Work::Backward { plan, .. } => plan.workspace_bytes(),
        };
        self.work.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_after_the_gpu() {
        assert_eq!(slug("NVIDIA H200"), "h200");
        assert_eq!(slug("NVIDIA A100-SXM4-80GB"), "a100-sxm4-80gb");
        assert_eq!(slug("NVIDIA GeForce RTX 4090"), "geforce-rtx-4090");
        assert_eq!(slug(""), "gpu");
    }

    #[test]
    fn without_a_gpu_the_device_says_what_is_missing() {
        if msdeform_cuda::device_count().is_ok() {
            eprintln!("SKIPPED: this machine has a CUDA driver");
            return;
        }
        let error = CudaDevice::new(0, DeviceOptions::default()).unwrap_err().to_string();
        assert!(error.contains("cuda:0") && error.contains("CUDA driver"), "{error}");
    }
}
