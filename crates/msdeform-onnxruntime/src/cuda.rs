//! A run of a node on a GPU: a launch on the session's stream, with tensors in the session's memory.

use std::sync::Arc;

use msdeform::{Problem, Role, RowStrides, SharedPlans, SourceStrides};
use msdeform_cuda::{
    Engine, INLINE_LEVELS, Plan, PlanOptions, PointerChecks, Pointers, Stream, Workspace,
};

use crate::api::Context;
use crate::call::Call;
use crate::error::Error;
use crate::node::{Inputs, Node};

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
        let plan = plan(inputs.tensors[0].1.device()?, &node.call(&inputs)?, &inputs)?;
        let output = context.output(&node.output_shape(plan.problem()), node.format)?;
        let pointers = Pointers::default().with(Role::Output, output.address());
        let pointers = inputs
            .tensors
            .iter()
            .fold(pointers, |all, (role, tensor)| all.with(*role, tensor.address()));
        // SAFETY: ONNX Runtime guarantees that the stream is that of this run, on the device of its tensors, that it frees
        // tensors in the order of the stream, and that nothing else uses the output. `Node::call` read the shapes and dtypes
        // that the plan was made for. `plan` refused plans with a workspace.
        unsafe {
            let stream = Stream::borrow(plan.context(), context.gpu_stream()?)?;
            Ok(plan.launch(&stream, &pointers)?)
        }
    }
}

/// Plans by device and call, about a kilobyte each: those of a few models in some sizes of images. Any number of runs may
/// launch one at the same time.
static PLANS: SharedPlans<(usize, Call), Arc<Plan>> = SharedPlans::new(256);

fn plan(device: usize, call: &Call, inputs: &Inputs<'_>) -> Result<Arc<Plan>, Error> {
    let make = || {
        let problem = call.problem()?;
        let engine = Engine::shared(device, |_| ())?;
        let plan = Plan::new(&engine, &problem, &options(&problem, inputs))?;
        if plan.workspace_bytes() > 0 {
            // Runs on several streams would share it.
            return Err(Error::Workspace { variant: plan.variant().id });
        }
        let plan = Arc::new(plan);
        if problem.levels().len() > INLINE_LEVELS {
            // It owns a table in device memory that a captured graph may go on reading.
            std::mem::forget(Arc::clone(&plan));
        }
        Ok(((device, call.clone()), plan))
    };
    PLANS.shared(|(of, key)| *of == device && key == call, make)
}

fn options(problem: &Problem, inputs: &Inputs<'_>) -> PlanOptions {
    PlanOptions {
        sources: inputs.shared_strides(problem).map(|[image, query]| SourceStrides {
            references: RowStrides { image: image as i64, query: query as i64 },
            ..SourceStrides::packed(problem)
        }),
        // The runtime's allocator made them. Null pointers are still refused.
        pointer_checks: PointerChecks::Never,
        workspace: Workspace::OfCaller,
        ..PlanOptions::default()
    }
}
