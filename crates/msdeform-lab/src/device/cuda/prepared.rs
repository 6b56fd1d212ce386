//! Variants on a GPU, ready to run and to be timed.
//!
//! Two clocks. Events around a single launch show what a large call takes; the launches before it are
//! not timed and keep the GPU busy while the CPU queues the timed one, so that no queueing is
//! measured. A call of a few microseconds is not much longer than the events themselves: there a graph of
//! many launches is replayed too and the time divided ([`GRAPH_BELOW_SAMPLES`]), and both times are kept.
//!
//! L2 is warm (the inputs of the timed run are those of the run before) unless the caller asks for cold;
//! the mode of a record tells which.

use bytemuck::{cast_slice, cast_slice_mut};
use half::f16;
use msdeform::{DType, Direction, Mode, Problem, Role, VariantSpec};
use msdeform_cuda::{DeviceBuffer, Error, Event, Graph, Plan, Pointers, Stream};

use super::{Setup, failed};
use crate::device::{DeviceError, KnobbedVariant, Prepared, Ready, Result, Timing};
use crate::tensors::written;
use crate::{Buffer, HostTensors};

/// Problems with fewer samples (over all images, queries and heads) are timed by graph replay as well: the
/// decoders, some 10 us and less, are below, the encoders above.
const GRAPH_BELOW_SAMPLES: usize = 500_000;

/// Launches of a graph: enough to divide the cost of starting it away.
const LAUNCHES_PER_GRAPH: usize = 20;

/// Launches before a timed one. See above.
const HEAD_START_LAUNCHES: usize = 2;

/// A [`Buffer`] in device memory, as words that every dtype is a multiple of.
struct DeviceTensor {
    dtype: DType,
    words: DeviceBuffer<f16>,
}

impl DeviceTensor {
    fn upload(stream: &Stream, host: &Buffer) -> Result<Self, Error> {
        let words = DeviceBuffer::from_host(stream, cast_slice(host.bytes()))?;
        Ok(Self { dtype: host.dtype(), words })
    }

    /// Every byte 0xff, as [`Self::poison`] leaves it. Not a copy of NaN from the host: outputs are gigabytes.
    fn poisoned(stream: &Stream, dtype: DType, bytes: usize) -> Result<Self, Error> {
        Ok(Self { dtype, words: DeviceBuffer::filled(stream, bytes / size_of::<f16>(), 0xff)? })
    }

    fn download(&self, stream: &Stream) -> Result<Buffer, Error> {
        let elements = self.words.bytes() / self.dtype.size_bytes();
        let mut buffer = Buffer::poisoned(self.dtype, elements);
        self.words.copy_to(stream, cast_slice_mut(buffer.bytes_mut()))?;
        Ok(buffer)
    }

    /// Every byte 0xff: NaN in every dtype.
    fn poison(&mut self, stream: &Stream) -> Result<(), Error> {
        self.words.fill(stream, 0xff)
    }
}

/// What is launched, in order: one direction, or a forward and a backward as one training step.
struct Work {
    plan: Plan,
    /// Everything the call writes.
    outputs: Vec<(Role, DeviceTensor)>,
    is_deterministic_backward: bool,
}

impl Work {
    fn new(
        setup: &Setup,
        choice: &KnobbedVariant,
        problem: &Problem,
        stream: &Stream,
    ) -> Result<Self, Error> {
        let direction = choice.variant.direction;
        let gradients = setup.options.gradients_of(problem);
        let made = written(problem, direction, gradients).map(|role| {
            let (dtype, bytes) = (problem.format_of(role), problem.bytes_of(role));
            Ok((role, DeviceTensor::poisoned(stream, dtype, bytes)?))
        });
        Ok(Self {
            plan: setup.plan(problem, choice)?,
            outputs: made.collect::<Result<_, Error>>()?,
            is_deterministic_backward: direction == Direction::Backward
                && setup.options.mode == Mode::Deterministic,
        })
    }

    fn download(&self, stream: &Stream) -> Result<HostTensors, Error> {
        let outputs = self.outputs.iter();
        outputs.map(|(role, tensor)| Ok((*role, tensor.download(stream)?))).collect()
    }
}

/// Where a launch starts: at its first step, or behind the steps whose results an earlier one left.
#[derive(Clone, Copy)]
enum Start {
    Preparation,
    Operator,
}

pub(super) struct PreparedCuda {
    setup: Setup,
    problem: Problem,
    // Dropped in this order: the graph before what it uses.
    graph: Option<Graph>,
    work: Vec<Work>,
    inputs: Vec<(Role, DeviceTensor)>,
    /// Written before every timed run where L2 should be cold.
    flush: Option<DeviceBuffer<f32>>,
    start: Event,
    end: Event,
    stream: Stream,
    clocks: Vec<Timing>,
    spec: &'static VariantSpec,
}

impl PreparedCuda {
    /// The given choices, launched one after the other.
    pub(super) fn ready<'a>(
        setup: &Setup,
        choices: &[KnobbedVariant],
        problem: &Problem,
        inputs: &HostTensors,
    ) -> Result<Ready<'a>> {
        let prepared = Self::new(setup.clone(), choices, problem, inputs);
        Ok(Box::new(prepared.map_err(|source| failed(choices[0].variant, source))?))
    }

    fn new(
        setup: Setup,
        choices: &[KnobbedVariant],
        problem: &Problem,
        inputs: &HostTensors,
    ) -> Result<Self, Error> {
        let (context, options) = (setup.engine.context(), setup.options);
        let stream = Stream::new(context)?;
        let spec = choices[choices.len() - 1].variant;
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
        let work = choices.iter().map(|choice| Work::new(&setup, choice, problem, &stream));
        let is_backward = spec.direction == Direction::Backward;
        let read = inputs.iter().filter(|(role, _)| is_backward || *role != Role::GradOutput);
        let read = read.map(|(role, buffer)| Ok((role, DeviceTensor::upload(&stream, buffer)?)));
        Ok(Self {
            problem: problem.clone(),
            graph: None,
            work: work.collect::<Result<_, _>>()?,
            inputs: read.collect::<Result<_, Error>>()?,
            flush: flush.transpose()?,
            start: Event::new(context)?,
            end: Event::new(context)?,
            stream,
            clocks,
            spec,
            setup,
        })
    }

    /// Every tensor and workspace is this value's own, of the problem that the plans were made for, and
    /// outlives what is queued: freeing memory waits for the kernels that use it. One stream orders all
    /// launches, and nothing else touches the outputs.
    fn launch(&self, stream: &Stream, start: Start) -> Result<(), Error> {
        for Work { plan, outputs, .. } in &self.work {
            let tensors = self.inputs.iter().chain(outputs);
            let pointers = tensors.fold(Pointers::default(), |all, (role, tensor)| {
                all.with(*role, tensor.words.address())
            });
            // SAFETY: see above; who skips the preparation has launched it before.
            unsafe {
                match start {
                    Start::Preparation => plan.launch(stream, &pointers),
                    Start::Operator => plan.launch_after_preparation(stream, &pointers),
                }
            }?;
        }
        Ok(())
    }

    /// The launches before the timed one always start at the preparation.
    fn time_launch(&mut self, start: Start) -> Result<f64, Error> {
        for _ in 0..HEAD_START_LAUNCHES {
            self.launch(&self.stream, Start::Preparation)?;
        }
        if let Some(flush) = &mut self.flush {
            flush.fill(&self.stream, 1)?;
        }
        self.start.record(&self.stream)?;
        self.launch(&self.stream, start)?;
        self.end.record(&self.stream)?;
        self.end.synchronize()?;
        self.end.elapsed_us_since(&self.start)
    }

    fn time_graph(&mut self) -> Result<f64, Error> {
        if self.graph.is_none() {
            self.graph = Some(Graph::capture(&self.stream, |stream| {
                (0..LAUNCHES_PER_GRAPH).try_for_each(|_| self.launch(stream, Start::Preparation))
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
    fn poison(&mut self) -> Result<()> {
        let mut outputs = self.work.iter_mut().flat_map(|work| &mut work.outputs);
        outputs
            .try_for_each(|(_, output)| output.poison(&self.stream))
            .map_err(|source| failed(self.spec, source))
    }

    fn run(&mut self) -> Result<()> {
        self.launch(&self.stream, Start::Preparation)
            .and_then(|()| self.stream.synchronize())
            .map_err(|source| failed(self.spec, source))
    }

    fn switch(&mut self, choice: &KnobbedVariant) -> Result<()> {
        let [work] = self.work.as_mut_slice() else {
            let reason = "a training step cannot change its variants";
            return Err(DeviceError::unsupported(choice.variant.id, &reason));
        };
        // What was captured launches the plan that goes.
        self.graph = None;
        // Another plan on the same tensors.
        let plan = self.setup.plan(&self.problem, choice);
        work.plan = plan.map_err(|source| failed(choice.variant, source))?;
        self.spec = choice.variant;
        Ok(())
    }

    fn read(&mut self) -> Result<HostTensors> {
        let last = &self.work[self.work.len() - 1];
        last.download(&self.stream).map_err(|source| failed(self.spec, source))
    }

    fn is_reproducible(&self) -> bool {
        self.work.iter().any(|work| work.is_deterministic_backward)
    }

    fn time(&mut self, clock: Timing, count: usize) -> Result<Vec<f64>> {
        let once = |_| match clock {
            Timing::Graph => self.time_graph(),
            _ => self.time_launch(Start::Preparation),
        };
        (0..count).map(once).collect::<Result<_, _>>().map_err(|source| failed(self.spec, source))
    }

    /// By events only: the preparing rungs are timed on calls that are long enough for them.
    fn time_after_preparation(&mut self, clock: Timing, count: usize) -> Result<Option<Vec<f64>>> {
        let prepares = self.work.iter().any(|work| work.plan.has_preparation());
        if clock != Timing::Events || !prepares {
            return Ok(None);
        }
        let times = (0..count).map(|_| self.time_launch(Start::Operator));
        times.collect::<Result<_, _>>().map(Some).map_err(|source| failed(self.spec, source))
    }

    fn clocks(&self) -> Vec<Timing> {
        self.clocks.clone()
    }

    fn mode(&self) -> &'static str {
        match (self.flush.is_some(), self.is_reproducible()) {
            (false, false) => "warm_l2",
            (true, false) => "cold_l2",
            (false, true) => "deterministic_warm_l2",
            (true, true) => "deterministic_cold_l2",
        }
    }

    fn workspace_bytes(&self) -> usize {
        self.work.iter().map(|work| work.plan.own_bytes()).sum()
    }
}
