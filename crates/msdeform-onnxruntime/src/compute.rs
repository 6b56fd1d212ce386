//! A run of a node on the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use msdeform::cpu::is_for_one_thread;
use msdeform::{DType, LentThreads, Problem, Role, TensorView};

use crate::api::{Context, Input, SessionThreads};
use crate::error::Error;
use crate::node::{Inputs, Node, shared_strides};
use crate::plans::{Entry, Plans};

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
        Self { node, plans: Plans::shared(), workers }
    }

    /// Computes the output.
    pub(crate) fn compute(&self, context: &Context<'_>) -> Result<(), Error> {
        let inputs = self.node.inputs(context)?;
        let mut found = self.plans.take(&self.node.call(&inputs)?)?;
        let result = self.run(context, &mut found.1, &inputs);
        self.plans.give_back(found);
        result
    }

    fn run(
        &self,
        context: &Context<'_>,
        entry: &mut Entry,
        inputs: &Inputs<'_>,
    ) -> Result<(), Error> {
        let Entry { plan, widened, .. } = entry;
        let problem = plan.problem();
        let shape = self.node.output_shape(problem);
        let output = context.output(&shape, self.node.format)?.numbers()?;
        let value = inputs.value.numbers(None)?;
        let [room_for_references, room_for_locations, room_for_weights] = widened;
        let format = problem.sampling_dtype();
        let locations = read(&inputs.locations, format, room_for_locations)?;
        let weights = read(&inputs.weights, format, room_for_weights)?;
        let workers = if is_for_one_thread(problem) { 1 } else { self.workers };
        let panicked = AtomicBool::new(false);
        let threads = SessionThreads { context, workers, panicked: &panicked };
        let threads: &dyn LentThreads = &threads;
        let operator = problem.operator();
        let mut tensors = vec![value];
        if let Some(input) = &inputs.references {
            let numbers = read(input, problem.reference_dtype(), room_for_references)?;
            tensors.push(spread(problem, numbers, input.shape.sizes())?);
        }
        tensors.extend([locations, weights]);
        let tensors = operator.inputs.iter().copied().zip(tensors);
        plan.run_on(threads, tensors, [(Role::Output, output)])?;
        // Relaxed: the workers have been joined.
        if panicked.load(Ordering::Relaxed) { Err(Error::Panic) } else { Ok(()) }
    }
}

/// A tensor in the dtype that the plan was made for.
fn read<'a>(
    input: &Input<'a>,
    format: DType,
    room: &'a mut Vec<f32>,
) -> Result<TensorView<'a>, Error> {
    input.numbers(Some(room).filter(|_| format == DType::F32))
}

/// References with a stride of zero for images or queries that share them.
fn spread<'a>(
    problem: &Problem,
    numbers: TensorView<'a>,
    sizes: &[i64],
) -> Result<TensorView<'a>, Error> {
    let Some([image, query]) = shared_strides(problem, sizes) else {
        return Ok(numbers);
    };
    let shape = problem.references_shape();
    let strides = [image.cast_signed(), query.cast_signed(), shape[3].cast_signed(), 1];
    Ok(TensorView::strided(numbers, &shape, &strides)?)
}
