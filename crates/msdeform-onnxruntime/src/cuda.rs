//! A run of a node on a GPU: a launch on the session's stream, with tensors in the session's memory.

use std::sync::{Arc, Mutex, PoisonError};

use msdeform::{Operator, PlanCache, Problem, Role, RowStrides, SourceStrides};
use msdeform_cuda::{
    Engine, INLINE_LEVELS, Plan, PlanOptions, PointerChecks, Pointers, Stream, Workspace,
};

use crate::api::Context;
use crate::call::{Call, Key};
use crate::error::Error;
use crate::node::{Inputs, Node, shared_strides};

/// If it is `off`, sessions get no kernels for GPUs, and their nodes run on the CPU provider.
const SWITCH: &str = "MSDEFORM_ONNXRUNTIME_CUDA";

/// Whether sessions are offered kernels for GPUs. This does not call the driver, because a session on the CPU does not need
/// it and a process that has called it can no longer fork.
pub(crate) fn is_offered() -> bool {
    std::env::var_os(SWITCH).is_none_or(|said| said != "off")
}

/// One node of a session. Runs may overlap.
#[derive(Debug)]
pub(crate) struct Kernel(Node);

impl Kernel {
    pub(crate) const fn new(node: Node) -> Self {
        Self(node)
    }

    /// Queues the computation of the output. The runtime waits for its stream before it uses the result.
    pub(crate) fn compute(&self, context: &Context<'_>) -> Result<(), Error> {
        let Self(node) = self;
        let inputs = node.inputs(context)?;
        let planned = plan(inputs.value.device()?, &node.call(&inputs)?)?;
        let Planned { engine, plan } = &*planned;
        let output = context.output(&node.output_shape(plan.problem()), node.format)?;
        let pointers =
            pointers(plan.problem().operator(), &inputs).with(Role::Output, output.address());
        // SAFETY: ONNX Runtime guarantees that the stream is that of this run, on the device of its tensors, that it frees
        // tensors in the order of the stream, and that nothing else uses the output. `Node::call` read the shapes and dtypes
        // that the plan was made for. `plan` refused plans with a workspace.
        unsafe {
            let stream = Stream::borrow(engine.context(), context.gpu_stream()?)?;
            Ok(plan.launch(&stream, &pointers)?)
        }
    }
}

fn pointers(operator: &Operator, inputs: &Inputs<'_>) -> Pointers {
    let Inputs { value, references, locations, weights, .. } = inputs;
    let tensors = [Some(value), references.as_ref(), Some(locations), Some(weights)];
    let each = operator.inputs.iter().zip(tensors.into_iter().flatten());
    each.fold(Pointers::default(), |all, (&role, tensor)| all.with(role, tensor.address()))
}

/// A plan with the engine whose code it launches.
#[derive(Debug)]
struct Planned {
    engine: Engine,
    plan: Plan,
}

/// Plans that are kept, about a kilobyte each: those of a few models in some sizes of images.
const PLANS: usize = 256;

/// By device and call. Any number of runs may launch one at the same time.
static KEPT: Mutex<PlanCache<(usize, Key), Arc<Planned>>> = Mutex::new(PlanCache::new(PLANS));

/// The plan of a call on a device, made now if it is new.
fn plan(device: usize, call: &Call<'_>) -> Result<Arc<Planned>, Error> {
    let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(planned) = kept().find(|(of, key)| *of == device && call.has(key)) {
        return Ok(Arc::clone(planned));
    }
    // Outside of the lock: kernels that were never compiled take seconds.
    let problem = call.problem()?;
    let engine = Engine::shared(device, |_| ())?;
    let plan = Plan::new(&engine, &problem, &options(&problem, call))?;
    if plan.workspace_bytes() > 0 {
        // Runs on several streams would share it.
        return Err(Error::Workspace { variant: plan.variant().id });
    }
    let planned = Arc::new(Planned { engine, plan });
    if problem.levels().len() > INLINE_LEVELS {
        // It owns a table in device memory that a captured graph may go on reading.
        std::mem::forget(Arc::clone(&planned));
    }
    let dropped = kept().put((device, call.key()), Arc::clone(&planned), 0);
    // Outside of the lock as well: memory of a device is given back when its kernels are done.
    drop(dropped);
    Ok(planned)
}

fn options(problem: &Problem, call: &Call<'_>) -> PlanOptions {
    let shared = shared_strides(problem, call.references.sizes());
    let shared = shared.filter(|_| problem.offsets().is_some());
    PlanOptions {
        sources: shared.map(|[image, query]| SourceStrides {
            references: RowStrides { image: image as i64, query: query as i64 },
            ..SourceStrides::packed(problem)
        }),
        // The runtime's allocator made them. Null pointers are still refused.
        pointer_checks: PointerChecks::Never,
        workspace: Workspace::OfCaller,
        ..PlanOptions::default()
    }
}
