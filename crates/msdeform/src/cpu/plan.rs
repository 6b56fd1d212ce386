//! The reusable plan: checks the tensors of a call and shares its work out to threads.

use half::{bf16, f16};

use super::backward::{Backward, BackwardTask};
use super::forward::{Forward, ForwardPart};
use super::geometry::{Geometry, LevelGroup};
use super::isa::Isa;
use super::placement::{Span, SpanMut};
use super::simd::Storage;
use super::sink::{FinishPart, SampleGradients};
use super::source::SampleSource;
use super::workers::{LentThreads, Workers};
use super::workspace::{AlignedFloats, NoScratch};
use super::{CpuVariant, describe};
use crate::call::{Tensors, compute_by_reference};
use crate::view::Expected;
use crate::{DType, Direction, Error, Problem, Role, TensorView, TensorViewMut};

/// How a [`CpuPlan`] runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads to use. `None`: those of the ambient rayon pool, which is one per core. `Some(1)`:
    /// the calling thread alone. Otherwise the plan starts its own, at most [`max_threads`](super::max_threads).
    pub threads: Option<usize>,
    /// Instructions to use. `None`: the best that this machine has.
    pub isa: Option<Isa>,
}

/// Everything that calls of one problem share: look-up tables, threads, scratch memory.
///
/// Building one is cheap next to a large call, but not next to a small one; build it once and keep
/// it. Scratch memory is allocated by the first call that needs it and reused from then on.
///
/// The [reference](crate::reference) computes what the CPU backend does not take: `f64`, an output or samples that are
/// neither `f32` nor of the values' dtype, and levels beyond 2^24 pixels wide or high or 2^31 pixels in all.
#[derive(Debug)]
pub struct CpuPlan {
    problem: Problem,
    /// `None` for the reference, which runs on one thread and keeps nothing between calls.
    kernels: Option<Kernels>,
}

#[derive(Debug)]
struct Kernels {
    geometry: Geometry,
    /// How a backward pass shares the levels of a head out; see [`level_groups`].
    groups: Vec<LevelGroup>,
    isa: Isa,
    workers: Workers,
    /// Gradients of samples between the two passes of a fused backward call.
    kept: AlignedFloats,
}

impl CpuPlan {
    /// Prepares calls of `problem`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an instruction set in the options that this machine lacks, or that has no code for the
    /// problem; [`Error::NoMemory`] for more points than there is memory to place; [`Error::Threads`] for none, for more
    /// than [`max_threads`](super::max_threads), and if the worker threads cannot be started.
    pub fn new(problem: &Problem, options: &CpuOptions) -> Result<Self, Error> {
        let kernels = match Kernels::new(problem, options) {
            Err(Error::Unsupported { .. }) if options.isa.is_none() => None,
            made => Some(made?),
        };
        Ok(Self { problem: problem.clone(), kernels })
    }

    /// The problem that the plan was built for.
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Threads that share the work; 1 means the calling thread.
    pub fn threads(&self) -> usize {
        self.kernels.as_ref().map_or(1, |kernels| kernels.workers.count())
    }

    /// The instruction set in use; [`Isa::Scalar`] for the reference.
    pub fn isa(&self) -> Isa {
        self.kernels.as_ref().map_or(Isa::Scalar, |kernels| kernels.isa)
    }

    /// Scratch memory held now; it grows with the first calls and then stays.
    pub fn workspace_bytes(&self) -> usize {
        let bytes = |kernels: &Kernels| kernels.workers.bytes() + kernels.kept.bytes();
        self.kernels.as_ref().map_or(0, bytes)
    }

    /// Computes the output. Every element of it is written. `inputs` are those of the problem's operator, in its order, as
    /// of [`forward`](crate::forward).
    ///
    /// Images and queries of references, offsets and logits may have any strides, so that offsets and logits may be parts
    /// of one tensor, and all images may share their references.
    ///
    /// # Errors
    /// A tensor of another dtype, shape or order than the problem says; another number of inputs; an output too small; no
    /// memory for the scratch space, in which case the output holds anything.
    pub fn forward<'r, 'w>(
        &mut self,
        inputs: impl IntoIterator<Item: Into<TensorView<'r>>>,
        output: impl Into<TensorViewMut<'w>>,
    ) -> Result<(), Error> {
        let tensors = Tensors::in_order(&self.problem, inputs, None, [(Role::Output, output)])?;
        self.compute(tensors, None)
    }

    /// Computes the requested gradients. Every element of them is written, packed, with the same bits for any number of
    /// threads.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`], with gradients in place of the output; [`Error::Tensors`] for a gradient that the operator
    /// does not have.
    pub fn backward<'r, 'w>(
        &mut self,
        inputs: impl IntoIterator<Item: Into<TensorView<'r>>>,
        grad_output: impl Into<TensorView<'r>>,
        gradients: impl IntoIterator<Item = (Role, impl Into<TensorViewMut<'w>>)>,
    ) -> Result<(), Error> {
        let grad_output = Some(grad_output.into());
        let tensors = Tensors::in_order(&self.problem, inputs, grad_output, gradients)?;
        self.compute(tensors, None)
    }

    /// Computes a call whose tensors come by role: a forward call if the output is among `written`, else a backward call.
    /// Tensors that the call does not read are ignored.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`] and [`CpuPlan::backward`]; [`Error::Tensors`] for an input that is missing.
    pub fn run<'r, 'w>(
        &mut self,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<(), Error> {
        let tensors = Tensors::by_role(&self.problem, read, written)?;
        self.compute(tensors, None)
    }

    /// As [`CpuPlan::run`], but a forward call runs on lent threads instead of the plan's own.
    ///
    /// # Errors
    /// As [`CpuPlan::run`].
    pub fn run_on<'r, 'w>(
        &mut self,
        threads: &dyn LentThreads,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<(), Error> {
        let tensors = Tensors::by_role(&self.problem, read, written)?;
        self.compute(tensors, Some(threads))
    }

    // Not generic, so that the kernels are compiled here and not in every crate that calls.
    fn compute(
        &mut self,
        mut tensors: Tensors<'_, '_>,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Error> {
        let (problem, tensors) = (&self.problem, &mut tensors);
        match (&mut self.kernels, problem.dtype()) {
            (None, _) | (_, DType::F64) => compute_by_reference(problem, tensors),
            (Some(kernels), DType::F32) => kernels.compute::<f32>(problem, tensors, lent),
            (Some(kernels), DType::F16) => kernels.compute::<f16>(problem, tensors, lent),
            (Some(kernels), DType::Bf16) => kernels.compute::<bf16>(problem, tensors, lent),
        }
    }
}

impl Kernels {
    fn new(problem: &Problem, options: &CpuOptions) -> Result<Self, Error> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        let CpuVariant { spec, .. } = describe(Direction::Forward, isa);
        let refuse = |reason: &str| Error::Unsupported { variant: spec.id, reason: reason.into() };
        spec.check_lists(problem)?;
        if !isa.is_available() {
            return Err(refuse("this machine lacks the instruction set"));
        }
        let mut geometry = Geometry::new(problem, isa.lanes())
            .ok_or_else(|| refuse("a level is beyond 2^24 pixels a side or 2^31 in all"))?;
        let workers = Workers::new(options.threads)?;
        let no_memory =
            |NoScratch { bytes }| Error::NoMemory { what: "the placement tables", bytes };
        geometry.place_all_levels().map_err(no_memory)?;
        let groups = level_groups(&geometry, workers.count()).map_err(no_memory)?;
        Ok(Self { geometry, groups, isa, workers, kept: AlignedFloats::default() })
    }

    fn compute<T: Storage>(
        &mut self,
        problem: &Problem,
        tensors: &mut Tensors<'_, '_>,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Error> {
        match tensors.result(Role::Output) {
            Some(output) => self.forward::<T>(problem, tensors, output, lent),
            None => self.backward::<T>(problem, tensors),
        }
    }

    fn forward<T: Storage>(
        &mut self,
        problem: &Problem,
        tensors: &mut Tensors<'_, '_>,
        output: TensorViewMut<'_>,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Error> {
        let of = |role| Expected::new(problem, role);
        let value = tensors.input(Role::Value)?.elements::<T>(&of(Role::Value))?;
        let source = SampleSource::of(problem, tensors)?;
        let output = SpanMut::of(output, &of(Role::Output))?;
        if problem.output_len() == 0 {
            return Ok(());
        }
        let (geometry, value) = (&self.geometry, value.as_ptr());
        let (call, isa) = (Forward { geometry, value, source, output }, self.isa);
        if let Some(threads) = lent {
            let tasks = call.tasks(threads.workers());
            return self.workers.take_turns_on(threads, tasks, |index, workspace| {
                let units = call.task(index, tasks);
                isa.run(ForwardPart { call: &call, units, workspace })
            });
        }
        self.workers.divide(call.units(), |units, workspace| {
            isa.run(ForwardPart { call: &call, units, workspace })
        })
    }

    fn backward<T: Storage>(
        &mut self,
        problem: &Problem,
        tensors: &mut Tensors<'_, '_>,
    ) -> Result<(), Error> {
        let of = |role| Expected::new(problem, role);
        let value = tensors.input(Role::Value)?.elements::<T>(&of(Role::Value))?;
        let source = SampleSource::of(problem, tensors)?;
        let upstream = tensors.input(Role::GradOutput)?;
        let (grad_output, _) = Span::of(upstream, &of(Role::GradOutput))?;
        let grad_value = tensors.result(Role::GradValue);
        let grad_value = grad_value.map(|to| to.elements::<T>(&of(Role::GradValue))).transpose()?;
        let of_samples = SampleGradients::of(problem, tensors)?;
        let samples = problem.weights_len();
        // A problem may have any number of images and heads without an element to write. References without samples still
        // have zeros to be written.
        if problem.value_len() == 0 && samples == 0 && problem.references_len() == 0 {
            return Ok(());
        }
        let sink = of_samples.sink(samples, &mut self.kept).map_err(|NoScratch { bytes }| {
            Error::NoMemory { what: "the gradients of the samples", bytes }
        })?;
        let call = Backward {
            geometry: &self.geometry,
            groups: &self.groups,
            value: value.as_ptr(),
            source,
            grad_output,
            grad_value: grad_value.map(<[T]>::as_mut_ptr),
            sink,
        };
        let isa = self.isa;
        self.workers.take_turns(call.tasks(), |index, workspace| {
            isa.run(BackwardTask { call: &call, index, workspace })
        })?;
        let Some(finish) = of_samples.finish(&self.geometry, &call.source, call.sink) else {
            return Ok(());
        };
        self.workers.divide(self.geometry.batch * self.geometry.queries, |queries, workspace| {
            isa.run(FinishPart { call: &finish, queries, workspace })
        })
    }
}

/// Whether a call is done before a second thread wakes up. Starting threads for it would only cost time.
pub fn is_for_one_thread(problem: &Problem) -> bool {
    // Miri is a thousand times slower and must see threads too.
    const PRODUCTS: usize = if cfg!(miri) { 1 << 6 } else { 1 << 16 };
    problem.weights_len().saturating_mul(problem.channels()) < PRODUCTS
}

/// The tasks of a backward pass are heads and groups of levels. One group reads and writes whole
/// cache lines of the samples, so heads are only split where there are too few of them to keep all
/// threads busy to the end. Levels do not share sums: the split cannot change the result.
fn level_groups(geometry: &Geometry, threads: usize) -> Result<Vec<LevelGroup>, NoScratch> {
    const TASKS_PER_THREAD: usize = 4;
    let (levels, heads) = (geometry.levels.len(), geometry.batch * geometry.heads);
    let wanted = threads.saturating_mul(TASKS_PER_THREAD).div_ceil(heads.max(1));
    let groups = if threads == 1 { 1 } else { wanted }.clamp(1, levels.max(1));
    (0..groups)
        .map(|group| geometry.group(group * levels / groups..(group + 1) * levels / groups))
        .collect()
}
