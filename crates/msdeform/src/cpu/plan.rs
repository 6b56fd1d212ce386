//! The reusable plan: checks the tensors of a call and shares its work out to threads.

use half::{bf16, f16};

use super::backward::{Backward, BackwardTask};
use super::by_role::Tensors;
use super::forward::{Forward, ForwardPart};
use super::geometry::{Geometry, LevelGroup};
use super::isa::Isa;
use super::output::{GradOutput, Output};
use super::simd::Storage;
use super::sink::{FinishPart, SampleGradients};
use super::source::SampleSource;
use super::workers::{LentThreads, Workers};
use super::workspace::{AlignedFloats, NoScratch};
use super::{CpuOptions, variant};
use crate::call::check_operator;
use crate::view::Expected;
use crate::{DType, Direction, Error, Problem, Role, TensorViewMut};

/// Everything that calls of one problem share: look-up tables, threads, scratch memory.
///
/// Building one is cheap next to a large call, but not next to a small one; build it once and keep
/// it. Scratch memory is allocated by the first call that needs it and reused from then on.
#[derive(Debug)]
pub struct CpuPlan {
    problem: Problem,
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
    /// [`Error::Unsupported`] for `f64` (the reference computes that), for an output or locations and weights
    /// that are neither `f32` nor of the value's format, for levels beyond 2^24 pixels wide or high
    /// or 2^31 pixels in all, and for an instruction set that this machine lacks; [`Error::NoMemory`] for more points
    /// than there is memory to place;
    /// [`Error::Threads`] for none, for more than [`max_threads`](super::max_threads), and if the worker threads cannot be
    /// started.
    pub fn new(problem: &Problem, options: &CpuOptions) -> Result<Self, Error> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        let spec = &variant(Direction::Forward, isa).spec;
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
        let kept = AlignedFloats::default();
        Ok(Self { problem: problem.clone(), geometry, groups, isa, workers, kept })
    }

    /// The problem that the plan was built for.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Threads that share the work; 1 means the calling thread.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.count()
    }

    /// The instruction set in use.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Scratch memory held now; it grows with the first calls and then stays.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.workers.bytes() + self.kept.bytes()
    }

    // Not generic, so that the kernels are compiled here and not in every crate that calls.
    pub(crate) fn compute(
        &mut self,
        mut tensors: Tensors<'_, '_>,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Error> {
        check_operator(&self.problem, tensors.operator)?;
        match self.problem.dtype() {
            DType::F32 => self.compute_in::<f32>(&mut tensors, lent),
            DType::F16 => self.compute_in::<f16>(&mut tensors, lent),
            DType::Bf16 => self.compute_in::<bf16>(&mut tensors, lent),
            DType::F64 => {
                let variant = variant(Direction::Forward, self.isa).spec.id;
                Err(Error::Unsupported { variant, reason: "no f64 values".into() })
            }
        }
    }

    fn compute_in<T: Storage>(
        &mut self,
        tensors: &mut Tensors<'_, '_>,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Error> {
        match tensors.result(Role::Output) {
            Some(output) => self.forward_in::<T>(tensors, output, lent),
            None => self.backward_in::<T>(tensors),
        }
    }

    fn forward_in<T: Storage>(
        &mut self,
        tensors: &mut Tensors<'_, '_>,
        output: TensorViewMut<'_>,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Error> {
        let of = |role| Expected::new(&self.problem, role);
        let value = tensors.input(Role::Value)?.elements::<T>(&of(Role::Value))?;
        let source = SampleSource::of(&self.problem, tensors)?;
        let expected = of(Role::Output);
        // In the values' format or in f32, as the plan has checked.
        let output = if expected.dtype == T::DTYPE {
            Output::LikeValues(output.elements::<T>(&expected)?.as_mut_ptr())
        } else {
            Output::Single(output.elements::<f32>(&expected)?.as_mut_ptr())
        };
        if self.problem.output_len() == 0 {
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

    fn backward_in<T: Storage>(&mut self, tensors: &mut Tensors<'_, '_>) -> Result<(), Error> {
        let of = |role| Expected::new(&self.problem, role);
        let value = tensors.input(Role::Value)?.elements::<T>(&of(Role::Value))?;
        let source = SampleSource::of(&self.problem, tensors)?;
        let (expected, upstream) = (of(Role::GradOutput), tensors.input(Role::GradOutput)?);
        let grad_output = if expected.dtype == T::DTYPE {
            GradOutput::LikeValues(upstream.elements::<T>(&expected)?.as_ptr())
        } else {
            GradOutput::Single(upstream.elements::<f32>(&expected)?.as_ptr())
        };
        let grad_value = tensors.result(Role::GradValue);
        let grad_value = grad_value.map(|to| to.elements::<T>(&of(Role::GradValue))).transpose()?;
        let of_samples = SampleGradients::of(&self.problem, tensors)?;
        let samples = self.problem.weights_len();
        // A problem may have any number of images and heads without an element to write. References without samples still
        // have zeros to be written.
        if self.problem.value_len() == 0 && samples == 0 && self.problem.references_len() == 0 {
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
