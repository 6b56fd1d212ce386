//! The reusable plan: checks the tensors of a call and shares its work out to threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::backward::{Backward, BackwardTask};
use super::forward::{Forward, ForwardPart};
use super::geometry::{Geometry, LevelGroup};
use super::isa::Isa;
use super::placement::{Span, SpanMut};
use super::simd::Storage;
use super::workspace::{NoScratch, Workspace};
use super::{CpuOptions, variant};
use crate::call::Shapes;
use crate::view::Expected;
use crate::{DType, Direction, Error, Problem, TensorView, TensorViewMut};

/// Where the gradients of a backward pass go. Any subset: what is not asked for is not computed.
///
/// ```
/// use msdeform::GradientsMut;
///
/// let (mut value, mut weights) = (vec![0f32; 12], vec![0f32; 4]);
/// let gradients = GradientsMut::new().value(&mut value).weights(&mut weights);
/// assert!(gradients.locations.is_none());
/// ```
#[derive(Debug, Default)]
pub struct GradientsMut<'a> {
    /// Gradient of the value tensor, in its layout and format.
    pub value: Option<TensorViewMut<'a>>,
    /// Gradient of the sampling locations.
    pub locations: Option<TensorViewMut<'a>>,
    /// Gradient of the attention weights.
    pub weights: Option<TensorViewMut<'a>>,
}

impl<'a> GradientsMut<'a> {
    /// Asks for no gradient yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the gradient of the value tensor.
    #[must_use]
    pub fn value(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.value = Some(to.into());
        self
    }

    /// Asks for the gradient of the sampling locations.
    #[must_use]
    pub fn locations(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.locations = Some(to.into());
        self
    }

    /// Asks for the gradient of the attention weights.
    #[must_use]
    pub fn weights(mut self, to: impl Into<TensorViewMut<'a>>) -> Self {
        self.weights = Some(to.into());
        self
    }
}

/// The threads that a plan runs on.
#[derive(Debug)]
enum Threads {
    /// The calling thread, no pool.
    Caller,
    /// The pool of the calling thread: rayon's global one unless the call comes from another.
    Ambient,
    /// Threads of this plan alone.
    Own(ThreadPool),
}

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
    threads: Threads,
    workspaces: Vec<Workspace>,
}

impl CpuPlan {
    /// Prepares calls of `problem`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for `f64` (the reference computes that), for locations and weights
    /// that are neither `f32` nor of the value's format, for levels beyond 2^24 pixels wide or high
    /// or 2^31 pixels in all, and for an instruction set that this machine lacks; [`Error::NoMemory`] for more points
    /// than there is memory to place;
    /// [`Error::Threads`] for none, for more than [`max_threads`], and if the worker threads cannot be started.
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
        let (threads, count) = match options.threads {
            Some(0) => {
                return Err(Error::Threads { threads: 0, reason: "at least one is needed".into() });
            }
            Some(threads) if threads > max_threads() => {
                let reason = format!("at most {} are started", max_threads());
                return Err(Error::Threads { threads, reason });
            }
            Some(1) => (Threads::Caller, 1),
            Some(threads) => (Threads::Own(start_pool(threads)?), threads),
            None => match rayon::current_num_threads() {
                1 => (Threads::Caller, 1),
                threads => (Threads::Ambient, threads),
            },
        };
        let mut workspaces = Vec::new();
        workspaces.resize_with(count, Workspace::default);
        let no_memory =
            |NoScratch { bytes }| Error::NoMemory { what: "the placement tables", bytes };
        geometry.place_all_levels().map_err(no_memory)?;
        let groups = level_groups(&geometry, count).map_err(no_memory)?;
        Ok(Self { problem: problem.clone(), geometry, groups, isa, threads, workspaces })
    }

    /// The problem that the plan was built for.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Threads that share the work; 1 means the calling thread.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workspaces.len()
    }

    /// The instruction set in use.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Scratch memory held now; it grows with the first calls and then stays.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.workspaces.iter().map(Workspace::bytes).sum()
    }

    /// Computes the output. Every element of it is written.
    ///
    /// # Errors
    /// A tensor of another dtype, shape or order than the problem says, or an output too small; no memory for the
    /// scratch space, and then the output holds anything.
    pub fn forward<'v, 'l, 'w, 'o>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        self.forward_views(value.into(), locations.into(), weights.into(), output.into())
    }

    /// Computes the gradients asked for. Every element of them is written; the same bits whatever
    /// the number of threads.
    ///
    /// # Errors
    /// A tensor of another dtype, shape or order than the problem says, or a gradient too small; no memory for the
    /// scratch space, and then the gradients hold anything.
    pub fn backward<'v, 'l, 'w, 'g>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        grad_output: impl Into<TensorView<'g>>,
        gradients: GradientsMut<'_>,
    ) -> Result<(), Error> {
        let (value, locations) = (value.into(), locations.into());
        self.backward_views(value, locations, weights.into(), grad_output.into(), gradients)
    }

    // Not generic, so that the kernels are compiled here and not in every crate that calls.
    fn forward_views(
        &mut self,
        value: TensorView<'_>,
        locations: TensorView<'_>,
        weights: TensorView<'_>,
        output: TensorViewMut<'_>,
    ) -> Result<(), Error> {
        match self.problem.dtype() {
            DType::F32 => self.forward_in::<f32>(value, locations, weights, output),
            DType::F16 => self.forward_in::<f16>(value, locations, weights, output),
            DType::Bf16 => self.forward_in::<bf16>(value, locations, weights, output),
            DType::F64 => Err(self.no_f64()),
        }
    }

    fn backward_views(
        &mut self,
        value: TensorView<'_>,
        locations: TensorView<'_>,
        weights: TensorView<'_>,
        grad: TensorView<'_>,
        gradients: GradientsMut<'_>,
    ) -> Result<(), Error> {
        match self.problem.dtype() {
            DType::F32 => self.backward_in::<f32>(value, locations, weights, grad, gradients),
            DType::F16 => self.backward_in::<f16>(value, locations, weights, grad, gradients),
            DType::Bf16 => self.backward_in::<bf16>(value, locations, weights, grad, gradients),
            DType::F64 => Err(self.no_f64()),
        }
    }

    fn forward_in<T: Storage>(
        &mut self,
        value: TensorView<'_>,
        locations: TensorView<'_>,
        weights: TensorView<'_>,
        output: TensorViewMut<'_>,
    ) -> Result<(), Error> {
        let shapes = Shapes::new(&self.problem);
        let value = value.elements::<T>(&shapes.value("value"))?;
        let locations = span(locations, &shapes.locations("sampling_locations"))?;
        let weights = span(weights, &shapes.weights("attention_weights"))?;
        let output = output.elements::<T>(&shapes.output("output"))?;
        if output.is_empty() {
            return Ok(());
        }
        let call = Forward {
            geometry: &self.geometry,
            value: value.as_ptr(),
            locations,
            weights,
            output: output.as_mut_ptr(),
        };
        let (units, parts, isa) = (call.units(), self.workspaces.len(), self.isa);
        let missing_bytes = AtomicUsize::new(0);
        let run = |(part, workspace): (usize, &mut Workspace)| {
            // In 128 bits: the product may exceed the address space.
            let bound = |part: usize| (units as u128 * part as u128 / parts as u128) as usize;
            let units = bound(part)..bound(part + 1);
            if let Err(NoScratch { bytes }) = isa.run(ForwardPart { call: &call, units, workspace })
            {
                missing_bytes.fetch_max(bytes, Ordering::Relaxed);
            }
        };
        match &self.threads {
            Threads::Caller => self.workspaces.iter_mut().enumerate().for_each(run),
            Threads::Ambient => self.workspaces.par_iter_mut().enumerate().for_each(run),
            Threads::Own(pool) => {
                let workspaces = &mut self.workspaces;
                pool.install(|| workspaces.par_iter_mut().enumerate().for_each(run));
            }
        }
        ensure_none_missing(missing_bytes)
    }

    fn backward_in<T: Storage>(
        &mut self,
        value: TensorView<'_>,
        locations: TensorView<'_>,
        weights: TensorView<'_>,
        grad_output: TensorView<'_>,
        gradients: GradientsMut<'_>,
    ) -> Result<(), Error> {
        let shapes = Shapes::new(&self.problem);
        let value = value.elements::<T>(&shapes.value("value"))?;
        let locations = span(locations, &shapes.locations("sampling_locations"))?;
        let weights = span(weights, &shapes.weights("attention_weights"))?;
        let grad_output = grad_output.elements::<T>(&shapes.output("grad_output"))?;
        let grad_value =
            gradients.value.map(|to| to.elements::<T>(&shapes.value("grad_value"))).transpose()?;
        let grad_locations = gradients
            .locations
            .map(|to| span_mut(to, &shapes.locations("grad_sampling_locations")))
            .transpose()?;
        let grad_weights = gradients
            .weights
            .map(|to| span_mut(to, &shapes.weights("grad_attention_weights")))
            .transpose()?;
        // As many images and heads as anybody writes down, and nothing of theirs to write.
        if self.problem.value_len() == 0 && self.problem.weights_len() == 0 {
            return Ok(());
        }
        let call = Backward {
            geometry: &self.geometry,
            groups: &self.groups,
            value: value.as_ptr(),
            locations,
            weights,
            grad_output: grad_output.as_ptr(),
            grad_value: grad_value.map(<[T]>::as_mut_ptr),
            grad_locations,
            grad_weights,
        };
        let (tasks, isa, next) = (call.tasks(), self.isa, AtomicUsize::new(0));
        let missing_bytes = AtomicUsize::new(0);
        let run = |workspace: &mut Workspace| {
            loop {
                // Relaxed: it gives every number out once and publishes nothing; the pool's join does that.
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    break;
                }
                if let Err(NoScratch { bytes }) =
                    isa.run(BackwardTask { call: &call, index, workspace })
                {
                    missing_bytes.fetch_max(bytes, Ordering::Relaxed);
                    break;
                }
            }
        };
        match &self.threads {
            Threads::Caller => self.workspaces.iter_mut().for_each(run),
            Threads::Ambient => self.workspaces.par_iter_mut().for_each(run),
            Threads::Own(pool) => {
                let workspaces = &mut self.workspaces;
                pool.install(|| workspaces.par_iter_mut().for_each(run));
            }
        }
        ensure_none_missing(missing_bytes)
    }

    fn no_f64(&self) -> Error {
        let variant = variant(Direction::Forward, self.isa).spec.id;
        Error::Unsupported { variant, reason: "no f64 values".into() }
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

/// The most threads that a plan starts: 1024, or one per core where there are more. Beyond that threads cost more
/// than they compute, and starting a hundred thousand of them takes minutes before the system says no.
#[must_use]
pub fn max_threads() -> usize {
    const MOST: usize = 1024;
    std::thread::available_parallelism().map_or(MOST, |cores| cores.get().max(MOST))
}

fn ensure_none_missing(missing_bytes: AtomicUsize) -> Result<(), Error> {
    match missing_bytes.into_inner() {
        0 => Ok(()),
        bytes => Err(Error::NoMemory { what: "the scratch space of a thread", bytes }),
    }
}

fn start_pool(threads: usize) -> Result<ThreadPool, Error> {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("msdeform-{index}"))
        .build()
        .map_err(|error| Error::Threads { threads, reason: error.to_string() })
}

fn span(view: TensorView<'_>, expected: &Expected<'_>) -> Result<Span, Error> {
    match expected.dtype {
        DType::F32 => view.elements::<f32>(expected).map(|x| Span::F32(x.as_ptr())),
        DType::F16 => view.elements::<f16>(expected).map(|x| Span::F16(x.as_ptr())),
        DType::Bf16 => view.elements::<bf16>(expected).map(|x| Span::Bf16(x.as_ptr())),
        DType::F64 => Err(Error::DtypeMismatch {
            tensor: expected.tensor,
            expected: DType::F32,
            found: DType::F64,
        }),
    }
}

fn span_mut(view: TensorViewMut<'_>, expected: &Expected<'_>) -> Result<SpanMut, Error> {
    match expected.dtype {
        DType::F32 => view.elements::<f32>(expected).map(|x| SpanMut::F32(x.as_mut_ptr())),
        DType::F16 => view.elements::<f16>(expected).map(|x| SpanMut::F16(x.as_mut_ptr())),
        DType::Bf16 => view.elements::<bf16>(expected).map(|x| SpanMut::Bf16(x.as_mut_ptr())),
        DType::F64 => Err(Error::DtypeMismatch {
            tensor: expected.tensor,
            expected: DType::F32,
            found: DType::F64,
        }),
    }
}
