//! GPUs: plans by key, launched on the caller's stream and the caller's memory.
//!
//! Plans are kept by the calling thread, so that a launch takes no lock; making one where another thread
//! already has one takes microseconds, since the code is shared by the engine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use msdeform::{Mode, Problem};
use msdeform_cuda::{
    BackwardOptions, BackwardPlan, BackwardPointers, DevicePointers, Engine, ForwardPlan,
    Gradients, INLINE_LEVELS, OutputStrides, PlanOptions, PointerChecks, Stream, ValueStrides,
    Workspace,
};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::call::Key;
use crate::error::CallError;

/// Plans kept by a thread. Each is about a kilobyte, and training sees a new one with every image size.
const PLANS: usize = 4096;

thread_local! {
    static FORWARD: RefCell<Plans<ForwardPlan>> = RefCell::default();
    static BACKWARD: RefCell<Plans<BackwardPlan>> = RefCell::default();
}

/// Plans of one direction, with the engine whose code they launch.
struct Plans<P: 'static> {
    by_key: FxHashMap<Box<[i64]>, (Engine, Kept<P>)>,
}

/// A plan and how long it stays.
enum Kept<P: 'static> {
    UntilCleared(P),
    /// It owns a table in device memory that a captured graph may go on reading.
    Forever(&'static P),
}

impl<P> Kept<P> {
    fn new(plan: P, levels: usize) -> Self {
        if levels > INLINE_LEVELS {
            Self::Forever(Box::leak(Box::new(plan)))
        } else {
            Self::UntilCleared(plan)
        }
    }

    fn plan(&self) -> &P {
        match self {
            Self::UntilCleared(plan) => plan,
            Self::Forever(plan) => plan,
        }
    }
}

impl<P> Default for Plans<P> {
    fn default() -> Self {
        Self { by_key: FxHashMap::default() }
    }
}

impl<P> Plans<P> {
    /// Runs something with the plan of a key, made now if it is new.
    fn with<T>(
        &mut self,
        key: &Key,
        make: impl FnOnce(&Engine, &Problem) -> Result<P, CallError>,
        run: impl FnOnce(&Engine, &P) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        if let Some((engine, kept)) = self.by_key.get(key.numbers()) {
            return run(engine, kept.plan());
        }
        let problem = key.problem()?;
        let engine = engine(usize::try_from(key.head().place).unwrap_or(usize::MAX))?;
        let kept = Kept::new(make(&engine, &problem)?, problem.levels().len());
        if self.by_key.len() >= PLANS {
            self.by_key.clear();
        }
        let (engine, kept) = self.by_key.entry(key.numbers().into()).or_insert((engine, kept));
        run(engine, kept.plan())
    }
}

/// The engine of a GPU, opened once and never closed: at exit there is no telling whether the driver or
/// we go first.
pub fn engine(ordinal: usize) -> Result<Engine, CallError> {
    static ENGINES: Mutex<Option<HashMap<usize, Engine>>> = Mutex::new(None);
    // In a forked process an error, and before the lock, which a thread of the parent may have held.
    msdeform_cuda::driver_version()?;
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = engines.get_or_insert_default();
    if let Some(engine) = opened.get(&ordinal) {
        return Ok(engine.clone());
    }
    let engine = Engine::new(ordinal)?;
    opened.insert(ordinal, engine.clone());
    // A warning runs Python, which may call us again.
    drop(engines);
    if let Some(ignored) = engine.tuning().ignored() {
        warn(&ignored);
    }
    Ok(engine)
}

/// Python's warning. Nobody's call fails for it, not even where warnings are errors.
fn warn(message: &str) {
    let Ok(message) = CString::new(message) else { return };
    Python::attach(|py| {
        drop(PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1));
    });
}

/// PyTorch has checked what its pointers lead to. What a null pointer means is still found and said.
fn options(key: &Key) -> PlanOptions {
    let (batch, head, pixel) = key.head().value_strides;
    PlanOptions {
        strides: Some(ValueStrides { batch, head, pixel }),
        pointer_checks: PointerChecks::Never,
        ..PlanOptions::default()
    }
}

fn backward_options(key: &Key, problem: &Problem) -> BackwardOptions {
    let head = key.head();
    let (batch, query, channel) = head.grad_strides;
    let wanted = |bit: i64| head.gradients & bit != 0;
    BackwardOptions {
        plan: options(key),
        gradients: Gradients { value: wanted(1), locations: wanted(2), weights: wanted(4) },
        mode: if head.deterministic { Mode::Deterministic } else { Mode::Fast },
        grad_output_strides: Some(OutputStrides {
            batch,
            query,
            head: channel.saturating_mul(problem.channels() as i64),
            channel,
        }),
        // PyTorch's allocator has it, in stream order and inside of graphs.
        workspace: Workspace::OfCaller,
    }
}

/// Queues the operator on a stream.
///
/// # Safety
/// As of [`ForwardPlan::launch`], for the problem that `key` describes; `stream` is a stream of the GPU
/// that `key` names.
pub unsafe fn forward(key: &Key, stream: usize, pointers: DevicePointers) -> Result<(), CallError> {
    FORWARD.with_borrow_mut(|plans| {
        let make = |engine: &Engine, problem: &Problem| {
            Ok(ForwardPlan::new(engine, problem, &options(key))?)
        };
        plans.with(key, make, |engine, plan| {
            // SAFETY: the caller says that it is a stream.
            let stream = unsafe { Stream::borrow(engine.context(), stream_pointer(stream))? };
            // SAFETY: passed on from the caller.
            Ok(unsafe { plan.launch(&stream, pointers) }?)
        })
    })
}

fn with_backward<T>(
    key: &Key,
    run: impl FnOnce(&Engine, &BackwardPlan) -> Result<T, CallError>,
) -> Result<T, CallError> {
    BACKWARD.with_borrow_mut(|plans| {
        let make = |engine: &Engine, problem: &Problem| {
            Ok(BackwardPlan::new(engine, problem, &backward_options(key, problem))?)
        };
        plans.with(key, make, run)
    })
}

/// Bytes of memory that [`backward`] needs beside its tensors.
pub fn workspace_bytes(key: &Key) -> Result<usize, CallError> {
    with_backward(key, |_, plan| Ok(plan.workspace_bytes()))
}

/// Queues the gradients on a stream.
///
/// # Safety
/// As of [`BackwardPlan::launch`], for the problem that `key` describes and a workspace of
/// [`workspace_bytes`]; `stream` is a stream of the GPU that `key` names.
pub unsafe fn backward(
    key: &Key,
    stream: usize,
    pointers: BackwardPointers,
) -> Result<(), CallError> {
    with_backward(key, |engine, plan| {
        // SAFETY: the caller says that it is a stream.
        let stream = unsafe { Stream::borrow(engine.context(), stream_pointer(stream))? };
        // SAFETY: passed on from the caller.
        Ok(unsafe { plan.launch(&stream, pointers) }?)
    })
}

fn stream_pointer(stream: usize) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(stream)
}
