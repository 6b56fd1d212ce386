//! A run of a node on the CPU.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use msdeform::cpu::is_for_one_thread;
use msdeform::{CpuOptions, CpuPlan, DType, Role, SharedPlans, TensorView};

use crate::api::{Context, SessionThreads};
use crate::call::Call;
use crate::error::Error;
use crate::node::{Inputs, Node};

/// One node of a session. Runs may overlap.
#[derive(Debug)]
pub(crate) struct Kernel {
    node: Node,
    plans: Arc<Plans>,
    /// Workers that a run requests of its session: one for each core.
    workers: usize,
}

impl Kernel {
    pub(crate) fn new(node: Node) -> Self {
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { node, plans: shared_plans(), workers }
    }

    /// Computes the output.
    pub(crate) fn compute(&self, context: &Context<'_>) -> Result<(), Error> {
        let inputs = self.node.inputs(context)?;
        let call = self.node.call(&inputs)?;
        let make = || Ok((call.clone(), Entry::new(&call)?));
        let run = |entry: &mut Entry| self.run(context, entry, &inputs);
        self.plans.with(|key| *key == call, make, Entry::scratch_bytes, run)
    }

    fn run(
        &self,
        context: &Context<'_>,
        entry: &mut Entry,
        inputs: &Inputs<'_>,
    ) -> Result<(), Error> {
        let Entry { plan, widened } = entry;
        let problem = plan.problem();
        let shape = self.node.output_shape(problem);
        let output = context.output(&shape, self.node.format)?.numbers()?;
        let shared = inputs.shared_strides(problem);
        widened.resize_with(inputs.tensors.len(), Vec::new);
        let mut read = Vec::with_capacity(inputs.tensors.len());
        for ((role, input), room) in inputs.tensors.iter().zip(widened) {
            let is_widened = problem.format_of(*role) == DType::F32;
            let numbers = input.numbers(Some(room).filter(|_| is_widened))?;
            let view = match shared.filter(|_| *role == Role::References) {
                Some([image, query]) => {
                    let [.., components] = problem.references_shape();
                    let outer = [image, query, components].map(usize::cast_signed);
                    TensorView::of_rows(problem, *role, numbers, &outer)?
                }
                None => numbers,
            };
            read.push((*role, view));
        }
        let workers = if is_for_one_thread(problem) { 1 } else { self.workers };
        let threads = SessionThreads { context, workers };
        Ok(plan.run_on(&threads, read, [(Role::Output, output)])?)
    }
}

/// A plan. One run at a time has it.
#[derive(Debug)]
struct Entry {
    plan: CpuPlan,
    /// Buffers for inputs that are widened to `f32`.
    widened: Vec<Vec<f32>>,
}

impl Entry {
    fn new(call: &Call) -> Result<Self, Error> {
        // The threads are the session's.
        let plan = CpuPlan::new(&call.problem()?, &CpuOptions { threads: Some(1), isa: None })?;
        Ok(Self { plan, widened: Vec::new() })
    }

    fn scratch_bytes(&self) -> usize {
        let widened = self.widened.iter().map(|numbers| 4 * numbers.capacity());
        self.plan.workspace_bytes() + widened.sum::<usize>()
    }
}

/// Plans of calls, shared by all nodes: the layers of a model have the same shapes and run one after the other.
type Plans = SharedPlans<Call, Entry>;

/// The plans of this process. They are dropped with the last node.
fn shared_plans() -> Arc<Plans> {
    static SHARED: Mutex<Weak<Plans>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        // A few for a model, for a few sizes of its images.
        let plans = Arc::new(SharedPlans::new(32));
        *shared = Arc::downgrade(&plans);
        plans
    })
}
