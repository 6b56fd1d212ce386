//! What a node does when it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use msdeform::{DType, LentThreads, Problem, Slice, TensorView, TensorViewMut};

use crate::api::{Context, Input, KernelInfo, SessionThreads};
use crate::call::{Attributes, Call, Shape};
use crate::error::Error;
use crate::operators::{FIRST_SAMPLES, Operator, element_type, format_of, type_name};
use crate::plans::{Entry, Plans, widen};

/// Below this many products of samples and channels a call is done before another thread wakes up.
const ONE_THREAD_BELOW: usize = 1 << 16;

/// One node of a session. Runs may overlap.
#[derive(Debug)]
pub(crate) struct Kernel {
    operator: &'static Operator,
    format: DType,
    attributes: Attributes,
    plans: Arc<Plans>,
    /// Workers that a run asks its session for: it has hardly more threads than the machine.
    workers: usize,
}

/// The samples of a run: references (of calls from offsets), locations or offsets, weights or logits.
struct Samples<'a> {
    references: Option<Input<'a>>,
    locations: Input<'a>,
    weights: Input<'a>,
}

impl Kernel {
    /// Checks what does not change from run to run.
    pub(crate) fn new(
        operator: &'static Operator,
        format: DType,
        info: &KernelInfo<'_>,
    ) -> Result<Self, Error> {
        for (index, &tensor) in operator.inputs.iter().enumerate().skip(FIRST_SAMPLES) {
            let found = info.input_type(index)?;
            let fits = [Some(format), (!operator.one_type).then_some(DType::F32)];
            if format_of(found).is_none_or(|found| !fits.contains(&Some(found))) {
                let own = type_name(element_type(format) as i32);
                let expected = match (operator.one_type, format) {
                    (true, _) | (_, DType::F32) => format!("{own} like `value`"),
                    _ => format!("{own} like `value`, or float"),
                };
                return Err(Error::Type { tensor, found: type_name(found), expected });
            }
        }
        let attributes = Attributes::read(info, operator.is_from_offsets())?;
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self { operator, format, attributes, plans: Plans::shared(), workers })
    }

    /// Computes the output.
    pub(crate) fn compute(&self, context: &Context<'_>) -> Result<(), Error> {
        let input = |index: usize| context.input(index, self.operator.inputs[index]);
        let (value, shapes, starts) = (input(0)?, input(1)?, input(2)?);
        let samples = if self.operator.is_from_offsets() {
            Samples { references: Some(input(3)?), locations: input(4)?, weights: input(5)? }
        } else {
            Samples { references: None, locations: input(3)?, weights: input(4)? }
        };
        let (sampling_format, reference_format) = samples.formats()?;
        let call = Call {
            attributes: &self.attributes,
            format: self.format,
            sampling_format,
            reference_format,
            value: value.shape,
            level_shapes: shapes.shape,
            level_starts: starts.shape,
            references: samples.references.as_ref().map_or(Shape::NONE, |input| input.shape),
            locations: samples.locations.shape,
            weights: samples.weights.shape,
            shapes: shapes.integers()?,
            starts: starts.integers()?,
        };
        let mut entry = self.plans.take(&call)?;
        let result = self.run(context, &mut entry, value.numbers()?, &samples);
        self.plans.give_back(entry);
        result
    }

    fn run(
        &self,
        context: &Context<'_>,
        entry: &mut Entry,
        value: Slice<'_>,
        samples: &Samples<'_>,
    ) -> Result<(), Error> {
        let Entry { plan, widened, .. } = entry;
        let problem = plan.problem();
        let [batch, queries, width] = problem.output_shape();
        let split = [batch, queries, problem.heads(), problem.channels()];
        let shape = if self.operator.splits_heads { &split[..] } else { &[batch, queries, width] };
        let output = TensorViewMut::flat(context.output(shape, self.format)?);
        let value = TensorView::flat(value);
        let [room_for_references, room_for_locations, room_for_weights] = widened;
        let format = problem.sampling_dtype();
        let locations = TensorView::flat(read(&samples.locations, format, room_for_locations)?);
        let weights = TensorView::flat(read(&samples.weights, format, room_for_weights)?);
        let products = problem.weights_len().saturating_mul(problem.channels());
        let workers = if products < ONE_THREAD_BELOW { 1 } else { self.workers };
        let panicked = AtomicBool::new(false);
        let threads = SessionThreads { context, workers, panicked: &panicked };
        let threads: &dyn LentThreads = &threads;
        match &samples.references {
            None => plan.forward_on(threads, value, locations, weights, output)?,
            Some(input) => {
                let numbers = read(input, problem.reference_dtype(), room_for_references)?;
                let references = spread(problem, numbers, input.shape.sizes())?;
                plan.forward_from_offsets_on(
                    threads, value, references, locations, weights, output,
                )?;
            }
        }
        // Relaxed: the workers have been joined.
        if panicked.load(Ordering::Relaxed) { Err(Error::Panic) } else { Ok(()) }
    }
}

impl Samples<'_> {
    /// The formats of locations and weights, and of references: one for the first two, `f32` where they differ.
    fn formats(&self) -> Result<(DType, DType), Error> {
        let one = |first: DType, second: DType| if first == second { first } else { DType::F32 };
        let sampling = one(self.locations.format()?, self.weights.format()?);
        let references = match &self.references {
            // They may be wider than offsets, and no narrower.
            Some(references) => one(references.format()?, sampling),
            None => sampling,
        };
        Ok((sampling, references))
    }
}

/// A tensor in the format that the plan was made for.
fn read<'a>(input: &Input<'a>, format: DType, room: &'a mut Vec<f32>) -> Result<Slice<'a>, Error> {
    let numbers = input.numbers()?;
    Ok(if format == DType::F32 { widen(numbers, room) } else { numbers })
}

/// References that serve all images, or all queries, as if there were one for each.
fn spread<'a>(
    problem: &Problem,
    numbers: Slice<'a>,
    sizes: &[i64],
) -> Result<TensorView<'a>, Error> {
    let shape = problem.references_shape();
    let [batch, queries, references, components] = shape;
    let is_one = |axis: usize, size: usize| sizes.get(axis) == Some(&1) && size != 1;
    if !is_one(0, batch) && !is_one(1, queries) {
        return Ok(TensorView::flat(numbers));
    }
    let row = references * components;
    let rows = if is_one(1, queries) { 1 } else { queries };
    let stride = |is_one: bool, step: usize| if is_one { 0 } else { step.cast_signed() };
    let strides = [
        stride(is_one(0, batch), rows * row),
        stride(is_one(1, queries), row),
        components.cast_signed(),
        1,
    ];
    Ok(TensorView::strided(numbers, &shape, &strides)?)
}
