//! Every forward variant against the f64 reference: shapes x formats x layouts, one test each.

use libtest_mimic::Trial;
use msdeform::{DType, Direction, Element, Error as ProblemError, Problem, ValueLayout};
use msdeform_cuda::variants::{Call, KnobChoices, Variant};
use msdeform_cuda::{DeviceBuffer, Error, Plan, PlanOptions, Stream, ValueStrides};
use msdeform_cuda_lab::REGISTRY;

use crate::cases::{
    FORMATS, Tensors, compare, compare_within, for_formats, problems, run_forward, with_gaps,
};
use crate::{Outcome, engine, ensure};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let forward = |variant: &&&dyn Variant| variant.spec().direction == Direction::Forward;
    for &variant in REGISTRY.iter().filter(forward) {
        let id = variant.spec().id;
        for layout in ValueLayout::ALL {
            let mut built: Vec<(&str, Problem)> = problems()
                .into_iter()
                .map(|(name, problem)| (name, problem.layout(layout).build().unwrap()))
                .collect();
            built.push(("gaps", with_gaps(layout)));
            for (name, problem) in built {
                trials.push(Trial::test(format!("forward::{id}::{layout}::{name}"), move || {
                    for (dtype, sampling) in FORMATS {
                        let builder = problem.to_builder().dtype(dtype).sampling_dtype(sampling);
                        let problem = builder.build()?;
                        for_formats!(dtype, sampling, check(variant, &problem))
                            .map_err(|error| format!("{problem}: {error:?}"))?;
                    }
                    Ok(())
                }));
            }
        }
        trials.push(Trial::test(format!("forward::{id}::every_knob"), move || every_knob(variant)));
    }
    trials.push(Trial::test("forward::strided_values_past_2_31_elements", far_strides));
    trials.push(Trial::test("forward::the_dispatcher_matches_the_reference", dispatched));
    trials
}

/// Compares one variant on one problem; what it refuses, it must refuse by name.
fn check<V: Element, S: Element>(variant: &'static dyn Variant, problem: &Problem) -> Outcome {
    run::<V, S>(problem, &PlanOptions { variant: Some(variant), ..Default::default() })
}

/// Compares what these options run. The bound is the variant's own.
pub fn run<V: Element, S: Element>(problem: &Problem, options: &PlanOptions) -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let plan = match Plan::new(&engine, problem, options) {
        Err(Error::Problem(ProblemError::Unsupported { variant, reason })) => {
            let asked = options.variant.map(|asked| asked.spec().id);
            ensure!(Some(variant) == asked, "{variant} refused: {reason}");
            return Ok(());
        }
        plan => plan?,
    };
    let tensors = Tensors::<V, S>::new(problem, 1);
    let value = DeviceBuffer::from_host(&stream, &tensors.value)?;
    let locations = DeviceBuffer::from_host(&stream, &tensors.locations)?;
    let weights = DeviceBuffer::from_host(&stream, &tensors.weights)?;
    let mut output = DeviceBuffer::<V>::filled(&stream, problem.output_len(), 0xff)?;
    run_forward(&plan, &stream, (&value, &locations, &weights), &mut output)?;
    let bound = plan.variant().rel_l2_bound(problem.dtype());
    compare_within(&output.to_host(&stream)?, &tensors.expected, bound)
}

/// One engine for the whole matrix, or every test would compile again.
pub fn shared_engine() -> Result<msdeform_cuda::Engine, libtest_mimic::Failed> {
    static ENGINE: std::sync::OnceLock<msdeform_cuda::Engine> = std::sync::OnceLock::new();
    if let Some(engine) = ENGINE.get() {
        return Ok(engine.clone());
    }
    let opened = engine()?;
    Ok(ENGINE.get_or_init(|| opened).clone())
}

/// Every value of every knob that the variant takes for an ordinary problem.
fn every_knob(variant: &'static dyn Variant) -> Outcome {
    let engine = shared_engine()?;
    let problem = Problem::builder()
        .batch(2)
        .heads(8)
        .channels(32)
        .queries(45)
        .levels([(12, 20), (6, 10)])
        .points(4)
        .dtype(DType::F16)
        .build()?;
    let call = Call::new(&problem, engine.context().props());
    for knob in variant.knobs() {
        for &value in knob.values {
            let knobs = vec![(knob.name.to_owned(), value)];
            if variant.configure(&call, &KnobChoices::new(variant, &knobs)?).is_err() {
                continue;
            }
            let options = PlanOptions { variant: Some(variant), knobs, ..Default::default() };
            run::<half::f16, half::f16>(&problem, &options)
                .map_err(|error| format!("{}={value}: {error:?}", knob.name))?;
        }
    }
    Ok(())
}

/// The second image starts past 2^31 elements; nothing between the two is read.
fn far_strides() -> Outcome {
    let engine = shared_engine()?;
    let stream = Stream::new(engine.context())?;
    let problem = Problem::builder()
        .batch(2)
        .heads(2)
        .channels(32)
        .queries(65)
        .levels([(12, 20), (6, 10)])
        .points(4)
        .dtype(DType::F16)
        .build()?;
    let tensors = Tensors::<half::f16, half::f16>::new(&problem, 3);
    let packed = ValueStrides::packed(&problem);
    let strides = ValueStrides { batch: (1 << 31) + 64, ..packed };
    let mut value = DeviceBuffer::filled(&stream, strides.extent(&problem), 0xff)?;
    let (first, second) = tensors.value.split_at(packed.batch as usize);
    value.copy_from(&stream, 0, first)?;
    value.copy_from(&stream, strides.batch as usize, second)?;
    let locations = DeviceBuffer::from_host(&stream, &tensors.locations)?;
    let weights = DeviceBuffer::from_host(&stream, &tensors.weights)?;
    let mut output = DeviceBuffer::filled(&stream, problem.output_len(), 0xff)?;
    let options = PlanOptions { strides: Some(strides), ..Default::default() };
    let plan = Plan::new(&engine, &problem, &options)?;
    run_forward(&plan, &stream, (&value, &locations, &weights), &mut output)?;
    compare(&output.to_host(&stream)?, &tensors.expected)
}

fn dispatched() -> Outcome {
    for (name, problem) in problems() {
        for (dtype, sampling) in FORMATS {
            let problem = problem.clone().dtype(dtype).sampling_dtype(sampling).build()?;
            let options = PlanOptions::default();
            for_formats!(dtype, sampling, run(&problem, &options))
                .map_err(|error| format!("{name}: {problem}: {error:?}"))?;
        }
    }
    Ok(())
}
