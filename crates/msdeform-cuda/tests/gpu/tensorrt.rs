//! The PTX that `TensorRT` embeds, loaded and launched through the driver with exactly the parameters that it uses.

use std::ffi::c_void;

use half::f16;
use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Direction, Element, Offsets, Problem, ProblemBuilder, Role};
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::tensorrt::{EmbeddedKernel, Integers, Number};
use msdeform_cuda::{DeviceBuffer, LaunchGeometry, Module, REGISTRY, Stream, driver_version};
use msdeform_lab::oracle::expect;
use msdeform_lab::{Case, HostTensors};

use crate::{Outcome, engine_and_stream, ensure};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("tensorrt::plain_f32", || run::<f32>(problem())),
        Trial::test("tensorrt::plain_f16", || run::<f16>(problem().dtype(DType::F16))),
        Trial::test("tensorrt::fused_f32", || {
            run::<f32>(problem().offsets(Offsets::from_points()))
        }),
        Trial::test("tensorrt::fused_f16", || {
            let problem = problem().dtype(DType::F16).reference_dtype(DType::F16);
            run::<f16>(problem.offsets(Offsets::from_boxes().one_for_all_levels()))
        }),
    ]
}

fn problem() -> ProblemBuilder {
    let sizes = [(40, 60), (20, 30), (10, 15)];
    let problem = Problem::builder().batch(2).heads(8).channels(32).queries(301).levels(sizes);
    problem.points_per_level([2, 4, 3])
}

fn run<T: Element>(problem: ProblemBuilder) -> Outcome {
    let problem = problem.build()?;
    let (engine, stream) = engine_and_stream()?;
    let kernel = EmbeddedKernel::new(&problem, Integers::I64)?;
    let mut ptx = kernel.ptx(&Nvrtc::find(driver_version().ok())?)?.into_bytes();
    ptx.push(0);
    let function = Module::load(engine.context(), &ptx)?.function(&kernel.name)?;
    let case = Case::varied(problem.clone(), Direction::Forward, 8);
    let inputs = case.inputs();
    let (tensors, output) = (on_device::<T>(&stream, &inputs)?, problem.len_of(Role::Output));
    let levels = levels_of(&stream, &problem)?;
    let output = DeviceBuffer::<T>::filled(&stream, output, 0xff)?;

    // Value, sizes, starts, samples; integers; output.
    let mut addresses: Vec<u64> = tensors.iter().map(DeviceBuffer::address).collect();
    addresses.splice(1..1, levels.iter().map(DeviceBuffer::address));
    let mut last = output.address();
    let numbers = kernel.numbers.iter().map(|number| number_of(&problem, *number));
    let mut numbers: Vec<i32> = numbers.collect();
    let mut arguments = pointers(&mut addresses);
    arguments.extend(pointers(&mut numbers));
    arguments.push((&raw mut last).cast());
    let rows = (problem.batch() * problem.queries() * problem.heads()) as u64;
    let blocks = u32::try_from(kernel.blocks(rows))?;
    let geometry = LaunchGeometry {
        shared_bytes: kernel.shared_bytes,
        ..LaunchGeometry::linear(blocks, kernel.threads)
    };
    let entered = engine.context().enter()?;
    // SAFETY: the arguments are those of the kernel, in its order; all buffers live until the synchronisation.
    unsafe { function.launch_with(&stream, &geometry, &mut arguments) }?;
    drop(entered);
    stream.synchronize()?;

    let found: Vec<f64> = output.to_host(&stream)?.into_iter().map(T::to_f64).collect();
    let expected = &expect(&case, &inputs)[0];
    let bound = REGISTRY[0].spec.rel_l2_bound(expected.dtype);
    let verdict = expected.compare_numbers(&found, bound);
    ensure!(verdict.fault.is_none(), "{}: {:?}", kernel.name, verdict.fault);
    Ok(())
}

fn pointers<A>(of: &mut [A]) -> Vec<*mut c_void> {
    of.iter_mut().map(|argument| std::ptr::from_mut(argument).cast()).collect()
}

fn number_of(problem: &Problem, number: Number) -> i32 {
    let number = match number {
        Number::Batch | Number::ReferenceImages => problem.batch(),
        Number::Pixels => problem.spatial(),
        Number::Queries | Number::ReferenceQueries => problem.queries(),
    };
    number as i32
}

fn on_device<T: Element>(
    stream: &Stream,
    inputs: &HostTensors,
) -> Result<Vec<DeviceBuffer<T>>, Failed> {
    let stored = |numbers: Vec<f64>| numbers.into_iter().map(T::from_f64).collect::<Vec<T>>();
    let buffer = |(_, buffer): (Role, &msdeform_lab::Buffer)| {
        Ok(DeviceBuffer::from_host(stream, &stored(buffer.to_f64()))?)
    };
    inputs.iter().map(buffer).collect()
}

/// Sizes and starts.
fn levels_of(stream: &Stream, problem: &Problem) -> Result<[DeviceBuffer<i64>; 2], Failed> {
    let levels = problem.levels();
    let sizes = levels.iter().flat_map(|level| [level.height as i64, level.width as i64]);
    let starts: Vec<i64> = levels.iter().map(|level| level.start as i64).collect();
    let sizes: Vec<i64> = sizes.collect();
    Ok([DeviceBuffer::from_host(stream, &sizes)?, DeviceBuffer::from_host(stream, &starts)?])
}
