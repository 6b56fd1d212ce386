//! GPUs: plans by key, launched on the caller's stream and the caller's memory.
//!
//! Plans are kept by the calling thread, so that a launch takes no lock; making one where another thread
//! already has one takes microseconds, since the code is shared by the engine.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use msdeform::{Gradients, Mode, OutputStrides, Problem, RowStrides, SourceStrides, ValueStrides};
use msdeform_cuda::{
    Ahead, BackwardOptions, Engine, INLINE_LEVELS, Plan, PlanOptions, PointerChecks, Pointers,
    Stream, Workspace,
};
use rustc_hash::FxHashMap;

use crate::call::{Call, Request};
use crate::error::CallError;
use crate::libtorch::Libtorch;

/// Plans kept by a thread. Each is about a kilobyte, and training sees a new one with every image size.
const PLANS_KEPT: usize = 4096;

thread_local! {
    static PLANS: RefCell<FxHashMap<Box<[i64]>, Arc<Planned>>> = RefCell::default();
}

/// A plan with the engine whose code it launches.
pub(crate) struct Planned {
    engine: Engine,
    plan: Plan,
}

/// The plan of a call, made now if it is new.
pub(crate) fn plan(call: &Call<'_>) -> Result<Arc<Planned>, CallError> {
    call.with_numbers(|numbers| {
        let known = PLANS.with_borrow(|plans| plans.get(numbers).cloned());
        known.map_or_else(|| make_plan(call, numbers), Ok)
    })
}

fn make_plan(call: &Call<'_>, numbers: &[i64]) -> Result<Arc<Planned>, CallError> {
    // Nothing is borrowed here: making a plan may warn, which runs Python, which may call us again.
    let problem = call.problem()?;
    let engine = engine(usize::try_from(call.place).unwrap_or(usize::MAX))?;
    let plan = Plan::new(&engine, &problem, &options(call, &problem))?;
    let planned = Arc::new(Planned { engine, plan });
    if problem.levels().len() > INLINE_LEVELS {
        // It owns a table in device memory that a captured graph may go on reading.
        std::mem::forget(Arc::clone(&planned));
    }
    PLANS.with_borrow_mut(|plans| {
        if plans.len() >= PLANS_KEPT {
            plans.clear();
        }
        plans.insert(numbers.into(), Arc::clone(&planned));
    });
    Ok(planned)
}

impl Planned {
    /// Bytes of memory that a launch needs in addition to its tensors.
    pub const fn workspace_bytes(&self) -> usize {
        self.plan.workspace_bytes()
    }

    /// Queues the call on a stream.
    ///
    /// # Safety
    /// As of [`Plan::launch`], for the problem of the plan's call; `stream` is a stream of its GPU.
    pub unsafe fn launch(&self, stream: usize, pointers: &Pointers) -> Result<(), CallError> {
        // SAFETY: passed on from the caller.
        Ok(unsafe { self.plan.launch(&borrowed(&self.engine, stream)?, pointers) }?)
    }
}

/// # Safety
/// It is a stream of the engine's GPU.
unsafe fn borrowed(engine: &Engine, stream: usize) -> Result<Stream, CallError> {
    let stream = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: passed on from the caller.
    Ok(unsafe { Stream::borrow(engine.context(), stream)? })
}

/// Whether what is queued on a stream of a GPU becomes part of a graph.
///
/// # Safety
/// It is a stream of that GPU.
pub(crate) unsafe fn is_capturing(ordinal: usize, stream: usize) -> Result<bool, CallError> {
    // SAFETY: passed on from the caller.
    Ok(unsafe { borrowed(&engine(ordinal)?, stream)? }.is_capturing()?)
}

/// The engine of a GPU, opened once.
pub fn engine(ordinal: usize) -> Result<Engine, CallError> {
    Ok(Engine::shared(ordinal, |engine| {
        if let Some(ignored) = engine.tuning().ignored() {
            match INTERPRETER.get() {
                // Runs Python, which may call us again.
                Some(warn) => warn(&ignored),
                None => Libtorch::warn(&ignored),
            }
        }
    })?)
}

/// How an interpreter warns, if this process has one.
static INTERPRETER: OnceLock<fn(&str)> = OnceLock::new();

/// This process has an interpreter: it is warned by this function, and ends with [`end_compiling_ahead`], so kernels may be
/// compiled ahead.
pub fn with_interpreter(warn: fn(&str)) {
    // If the package is imported again, the first function stays.
    let _ = INTERPRETER.set(warn);
}

/// Compiling ahead is switched off by this variable, set to `off`.
const AHEAD_VARIABLE: &str = "MSDEFORM_COMPILE_AHEAD";

/// Waits for what is being compiled ahead and compiles nothing more: before the process ends, since NVRTC must not be at
/// work while it is taken down.
pub fn end_compiling_ahead() {
    Engine::all_shared().iter().for_each(|engine| engine.compiler().close());
}

const fn backward(
    deterministic: bool,
    gradients: Gradients,
    grad_output_strides: Option<OutputStrides>,
) -> BackwardOptions {
    let mode = if deterministic { Mode::Deterministic } else { Mode::Fast };
    BackwardOptions { gradients, mode, grad_output_strides }
}

fn ahead(request: &Request) -> Ahead {
    // A program without an interpreter ends as it likes, with a compiler at work or not.
    let is_off = INTERPRETER.get().is_none();
    if is_off || std::env::var_os(AHEAD_VARIABLE).is_some_and(|value| value == "off") {
        Ahead::Nothing
    } else if request.expected != Gradients::NONE {
        Ahead::Gradients(backward(request.deterministic, request.expected, None))
    } else {
        Ahead::OtherSizes
    }
}

fn options(call: &Call<'_>, problem: &Problem) -> PlanOptions {
    let Request { gradients, deterministic, grad_strides, .. } = call.request;
    let [batch, query, channel] = grad_strides;
    let head = channel.saturating_mul(problem.channels() as i64);
    let grad_strides = OutputStrides { batch, query, head, channel };
    // Nothing but an input with free axes has strides that count.
    let stride = |at: usize, axis: usize| {
        call.inputs.tensors.get(at).map_or(0, |tensor| tensor.stride(axis))
    };
    let row = |at: usize| RowStrides { image: stride(at, 0), query: stride(at, 1) };
    PlanOptions {
        backward: (gradients != Gradients::NONE)
            .then(|| backward(deterministic, gradients, Some(grad_strides))),
        strides: Some(ValueStrides {
            batch: stride(0, 0),
            head: stride(0, 2),
            pixel: stride(0, 1),
        }),
        sources: call.inputs.rule.map(|_| SourceStrides {
            references: row(1),
            offsets: row(2),
            logits: row(3),
        }),
        // PyTorch has checked what its pointers lead to. A null pointer is still found and named.
        pointer_checks: PointerChecks::Never,
        // PyTorch's allocator has it, in stream order and inside of graphs.
        workspace: Workspace::OfCaller,
        ahead: ahead(&call.request),
        ..PlanOptions::default()
    }
}
