//! The reusable plan: checks the tensors of a call and shares its work out to threads.

use half::{bf16, f16};

use super::backward::{Backward, BackwardTask};
use super::by_role::Tensors;
use super::forward::{Forward, ForwardPart};
use super::geometry::{Geometry, LevelGroup};
use super::gradients::{GradientsMut, OffsetGradientsMut};
use super::isa::Isa;
use super::output::{GradOutput, Output};
use super::placement::{Span, SpanMut};
use super::simd::Storage;
use super::sink::{Finish, FinishPart, Sink};
use super::source::{GivenSource, OffsetSource, SampleSource, Strided};
use super::workers::{LentThreads, Workers};
use super::workspace::{AlignedFloats, NoScratch};
use super::{CpuOptions, variant};
use crate::call::check_operator;
use crate::view::Expected;
use crate::{
    ATTENTION, DType, Direction, Error, FROM_OFFSETS, Problem, Role, TensorView, TensorViewMut,
};

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
    /// Gradients of samples between the two passes of a backward call from offsets.
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

    /// Computes the output. Every element of it is written.
    ///
    /// # Errors
    /// A tensor of another dtype, shape or order than the problem says, or an output too small; no memory for the
    /// scratch space, and then the output holds anything; a problem whose samples follow from offsets.
    pub fn forward<'v, 'l, 'w, 'o>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        let read = [value.into(), locations.into(), weights.into()];
        self.compute(Tensors::of(&ATTENTION, read, [Some(output.into())]), None)
    }

    /// As [`CpuPlan::forward`], on threads of somebody else instead of the plan's own.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`].
    pub fn forward_on<'v, 'l, 'w, 'o>(
        &mut self,
        threads: &dyn LentThreads,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        let read = [value.into(), locations.into(), weights.into()];
        self.compute(Tensors::of(&ATTENTION, read, [Some(output.into())]), Some(threads))
    }

    /// Computes the output of a problem [from offsets](crate::Offsets). Images and queries of the references, offsets and
    /// logits may lie anywhere, so that the latter two may be parts of one tensor, and references may be the same for all.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`]; a problem whose samples are given.
    pub fn forward_from_offsets<'v, 'r, 'd, 'l, 'o>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        references: impl Into<TensorView<'r>>,
        offsets: impl Into<TensorView<'d>>,
        logits: impl Into<TensorView<'l>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        let read = [value.into(), references.into(), offsets.into(), logits.into()];
        self.compute(Tensors::of(&FROM_OFFSETS, read, [Some(output.into())]), None)
    }

    /// As [`CpuPlan::forward_from_offsets`], on threads of somebody else instead of the plan's own.
    ///
    /// # Errors
    /// As [`CpuPlan::forward_from_offsets`].
    pub fn forward_from_offsets_on<'v, 'r, 'd, 'l, 'o>(
        &mut self,
        threads: &dyn LentThreads,
        value: impl Into<TensorView<'v>>,
        references: impl Into<TensorView<'r>>,
        offsets: impl Into<TensorView<'d>>,
        logits: impl Into<TensorView<'l>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        let read = [value.into(), references.into(), offsets.into(), logits.into()];
        self.compute(Tensors::of(&FROM_OFFSETS, read, [Some(output.into())]), Some(threads))
    }

    /// Computes the gradients asked for. Every element of them is written; the same bits whatever
    /// the number of threads.
    ///
    /// # Errors
    /// A tensor of another dtype, shape or order than the problem says, or a gradient too small; no memory for the
    /// scratch space, and then the gradients hold anything; a problem whose samples follow from offsets.
    pub fn backward<'v, 'l, 'w, 'g>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        grad_output: impl Into<TensorView<'g>>,
        gradients: GradientsMut<'_>,
    ) -> Result<(), Error> {
        let read = [value.into(), locations.into(), weights.into(), grad_output.into()];
        self.compute(Tensors::of(&ATTENTION, read, gradients.in_order()), None)
    }

    /// Computes the gradients asked for of a problem [from offsets](crate::Offsets). Every element of them is written, packed;
    /// the same bits whatever the number of threads.
    ///
    /// # Errors
    /// As [`CpuPlan::backward`]; a problem whose samples are given.
    pub fn backward_from_offsets<'v, 'r, 'd, 'l, 'g>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        references: impl Into<TensorView<'r>>,
        offsets: impl Into<TensorView<'d>>,
        logits: impl Into<TensorView<'l>>,
        grad_output: impl Into<TensorView<'g>>,
        gradients: OffsetGradientsMut<'_>,
    ) -> Result<(), Error> {
        let (value, grad_output) = (value.into(), grad_output.into());
        let read = [value, references.into(), offsets.into(), logits.into(), grad_output];
        self.compute(Tensors::of(&FROM_OFFSETS, read, gradients.in_order()), None)
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
        let source = self.source(tensors)?;
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
        let source = self.source(tensors)?;
        let (expected, upstream) = (of(Role::GradOutput), tensors.input(Role::GradOutput)?);
        let grad_output = if expected.dtype == T::DTYPE {
            GradOutput::LikeValues(upstream.elements::<T>(&expected)?.as_ptr())
        } else {
            GradOutput::Single(upstream.elements::<f32>(&expected)?.as_ptr())
        };
        let grad_value = tensors.result(Role::GradValue);
        let grad_value = grad_value.map(|to| to.elements::<T>(&of(Role::GradValue))).transpose()?;
        // None where the role is not of the operator.
        let mut write = |role| tensors.result(role).map(|to| span_mut(to, &of(role))).transpose();
        let (locations, weights) = (write(Role::GradLocations)?, write(Role::GradWeights)?);
        let grad_references = write(Role::GradReferences)?;
        let (grad_offsets, grad_logits) = (write(Role::GradOffsets)?, write(Role::GradLogits)?);
        let mut sink = None;
        if locations.is_some() || weights.is_some() {
            sink = Some(Sink::Samples { locations, weights });
        }
        let samples = self.problem.weights_len();
        // As many images and heads as anybody writes down, and nothing of theirs to write. References without samples have
        // zeros to be written.
        if self.problem.value_len() == 0 && samples == 0 && self.problem.references_len() == 0 {
            return Ok(());
        }
        if grad_references.is_some() || grad_offsets.is_some() || grad_logits.is_some() {
            let no_memory = |NoScratch { bytes }| Error::NoMemory {
                what: "the gradients of the samples",
                bytes,
            };
            let xy = self.kept.reserve(3 * samples).map_err(no_memory)?;
            sink = Some(Sink::Kept { xy, weights: xy.wrapping_add(2 * samples) });
        }
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
        let (
            Some(Sink::Kept { xy: kept_xy, weights: kept_weights }),
            SampleSource::Offsets(source),
        ) = (call.sink, &call.source)
        else {
            return Ok(());
        };
        let finish = Finish {
            geometry: &self.geometry,
            source,
            kept_xy,
            kept_weights,
            grad_references,
            grad_offsets,
            grad_logits,
        };
        self.workers.divide(self.geometry.batch * self.geometry.queries, |queries, workspace| {
            isa.run(FinishPart { call: &finish, queries, workspace })
        })
    }

    /// Checks what the samples are given as against what the problem says.
    fn source(&self, tensors: &mut Tensors<'_, '_>) -> Result<SampleSource, Error> {
        let of = |role| Expected::new(&self.problem, role);
        let Some(&rule) = self.problem.offsets() else {
            let (locations, weights) =
                (tensors.input(Role::Locations)?, tensors.input(Role::Weights)?);
            return Ok(SampleSource::Given(GivenSource {
                locations: spread::<0>(locations, &of(Role::Locations))?.0,
                weights: spread::<0>(weights, &of(Role::Weights))?.0,
            }));
        };
        let (references, [image, query, reference_step]) =
            spread(tensors.input(Role::References)?, &of(Role::References))?;
        let offsets = spread(tensors.input(Role::Offsets)?, &of(Role::Offsets))?;
        let logits = spread(tensors.input(Role::Logits)?, &of(Role::Logits))?;
        Ok(SampleSource::Offsets(OffsetSource {
            rule,
            references: Strided { span: references, image, query },
            reference_step,
            offsets: Strided::new(offsets),
            logits: Strided::new(logits),
        }))
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

/// A tensor whose first axes may lie anywhere, and their strides.
fn spread<const AXES: usize>(
    view: TensorView<'_>,
    expected: &Expected,
) -> Result<(Span, [usize; AXES]), Error> {
    match expected.dtype {
        DType::F32 => view.spread::<f32, AXES>(expected).map(|(x, s)| (Span::F32(x.as_ptr()), s)),
        DType::F16 => view.spread::<f16, AXES>(expected).map(|(x, s)| (Span::F16(x.as_ptr()), s)),
        DType::Bf16 => {
            view.spread::<bf16, AXES>(expected).map(|(x, s)| (Span::Bf16(x.as_ptr()), s))
        }
        DType::F64 => Err(no_f64_samples(expected)),
    }
}

fn span_mut(view: TensorViewMut<'_>, expected: &Expected) -> Result<SpanMut, Error> {
    match expected.dtype {
        DType::F32 => view.elements::<f32>(expected).map(|x| SpanMut::F32(x.as_mut_ptr())),
        DType::F16 => view.elements::<f16>(expected).map(|x| SpanMut::F16(x.as_mut_ptr())),
        DType::Bf16 => view.elements::<bf16>(expected).map(|x| SpanMut::Bf16(x.as_mut_ptr())),
        DType::F64 => Err(no_f64_samples(expected)),
    }
}

fn no_f64_samples(expected: &Expected) -> Error {
    let (tensor, expected, found) = (expected.tensor, DType::F32, DType::F64);
    Error::DtypeMismatch { tensor, expected, found }
}
