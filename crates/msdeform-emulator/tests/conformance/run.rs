//! Compiles a variant's cells, runs all scenes of each, compares.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use msdeform::{DType, Direction, Problem};
use msdeform_cuda::variants::{Call, Configuration, KnobChoices, Variant};
use msdeform_cuda::{DeviceProps, ForwardParams, INLINE_LEVELS, ValueStrides, level_geometry};
use msdeform_emulator::{
    Buffer, EmulatedKernel, EmulatorError, Launch, Order, Specialisation, placeholder_address,
};
use rayon::prelude::*;

use super::cover::{Cell, Cover, cover};
use super::inputs::{Inputs, load_all, relative_l2};
use super::report::Outcome;
use super::scenes::{SCENES, Scene};

/// A scene of a cell that can be launched.
struct Case {
    cell: Cell,
    scene: &'static Scene,
    problem: Problem,
    strides: ValueStrides,
    configuration: Configuration,
    order: Order,
}

impl Case {
    fn name(&self) -> String {
        format!("{}, {} ({:?} order): {}", self.cell, self.scene.name, self.order, self.problem)
    }
}

pub fn run_variant(variant: &'static dyn Variant, full: bool) -> Outcome {
    let started = Instant::now();
    let spec = variant.spec();
    let mut outcome = Outcome { id: spec.id, ..Outcome::default() };
    if spec.direction != Direction::Forward {
        outcome.failures.push("this suite knows no backward kernels: teach it".to_owned());
        return outcome;
    }
    let Cover { cells, refused } =
        cover(variant, full, |cell| plan(variant, cell, &SCENES[0], 0).map(|_| ()));
    outcome.cells = cells.len();
    for reason in refused {
        outcome.skipped.add(reason);
    }

    // Cases by the macros they are compiled with: one kernel and one process each.
    let mut groups: BTreeMap<Vec<String>, Vec<Case>> = BTreeMap::new();
    for (index, cell) in cells.iter().enumerate() {
        for (turn, scene) in SCENES.iter().enumerate() {
            match plan(variant, cell, scene, index + turn) {
                Ok(case) => {
                    groups.entry(case.configuration.defines(&case.problem)).or_default().push(case);
                }
                Err(reason) => outcome.skipped.add(reason),
            }
        }
    }
    outcome.kernels = groups.len();
    let groups: Vec<_> = groups.into_iter().collect();
    let results: Vec<GroupResult> =
        groups.par_iter().map(|(defines, cases)| run_group(variant, defines, cases)).collect();
    for GroupResult { errors, failures } in results {
        outcome.launches += errors.len();
        outcome.failures.extend(failures);
        for (dtype, error) in errors {
            let bound = spec.rel_l2_bound(dtype);
            let worst = outcome.errors.entry(dtype.name()).or_insert((0.0, bound));
            worst.0 = if error > worst.0 || error.is_nan() { error } else { worst.0 };
        }
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    outcome
}

/// The case, or why there is none.
fn plan(
    variant: &'static dyn Variant,
    cell: &Cell,
    scene: &'static Scene,
    turn: usize,
) -> Result<Case, String> {
    let problem = scene
        .problem(cell.model, cell.dtype, cell.sampling_dtype, cell.layout)
        .map_err(|error| error.to_string())?;
    if problem.output_len() == 0 {
        return Err("an empty output: nothing is launched".to_owned());
    }
    let strides = scene.strides(&problem);
    let device = DeviceProps { multiprocessors: scene.multiprocessors, ..DeviceProps::h200() };
    let call = Call {
        problem: &problem,
        strides,
        device: &device,
        query_raster_width: scene.raster_width,
    };
    variant.check(&call).map_err(|error| error.to_string())?;
    let chosen = cell.knob.map(|(name, value)| (name.to_owned(), value));
    let knobs = KnobChoices::new(variant, chosen.as_slice()).map_err(|error| error.to_string())?;
    let configuration = variant.configure(&call, &knobs)?;
    if configuration.geometry.cluster > 1 {
        return Err("a launch with clusters, which the emulator does not have".to_owned());
    }
    let order = Order::ALL[turn % Order::ALL.len()];
    Ok(Case { cell: *cell, scene, problem, strides, configuration, order })
}

/// What came of the cases that share a kernel.
#[derive(Default)]
struct GroupResult {
    /// Relative error of every launch that ran.
    errors: Vec<(DType, f64)>,
    failures: Vec<String>,
}

/// Runs the cases that share a kernel.
fn run_group(variant: &dyn Variant, defines: &[String], cases: &[Case]) -> GroupResult {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-cuda/kernels");
    let compiled = EmulatedKernel::compile(&Specialisation {
        source: kernels.join(variant.source().name),
        headers: kernels,
        entry: variant.spec().id.to_owned(),
        defines: defines.to_vec(),
    });
    let kernel = match compiled {
        Ok(kernel) => kernel,
        Err(error) => {
            let failures = vec![format!("{}: {error}", cases[0].name())];
            return GroupResult { failures, ..GroupResult::default() };
        }
    };
    let prepared: Vec<(Launch, Inputs)> = cases.iter().map(prepare).collect();
    let launches: Vec<Launch> = prepared.iter().map(|(launch, _)| launch.clone()).collect();
    // One process for all; only if it fails one for each, to tell which case it was.
    let outputs: Vec<Result<Vec<u8>, EmulatorError>> = match kernel.launch_all(&launches) {
        Ok(outputs) => outputs.into_iter().map(|mut written| Ok(written.remove(0))).collect(),
        Err(_) => launches
            .par_iter()
            .map(|launch| kernel.launch(launch).map(|mut written| written.remove(0)))
            .collect(),
    };
    let mut result = GroupResult::default();
    for ((case, (_, inputs)), output) in cases.iter().zip(&prepared).zip(outputs) {
        match output {
            Ok(bytes) => {
                let dtype = case.problem.dtype();
                let error = relative_l2(&load_all(&bytes, dtype), &inputs.expected);
                let bound = variant.spec().rel_l2_bound(dtype);
                // NaN is not within any bound.
                let within = error <= bound;
                if !within {
                    result.failures.push(format!(
                        "{}: relative error {error:.2e}, bound {bound:.0e}",
                        case.name()
                    ));
                }
                result.errors.push((dtype, error));
            }
            Err(error) => result.failures.push(format!("{}: {error}", case.name())),
        }
    }
    result
}

fn prepare(case: &Case) -> (Launch, Inputs) {
    let Case { scene, problem, strides, configuration, order, .. } = case;
    let inputs = Inputs::new(scene, problem, *strides);
    let offset = |alignment: usize| if scene.least_aligned { alignment as u32 } else { 0 };
    let value_offset = offset(configuration.value_alignment);
    let sampling_offset = offset(configuration.sampling_alignment);
    let device = DeviceProps { multiprocessors: scene.multiprocessors, ..DeviceProps::h200() };
    let call = Call {
        problem,
        strides: *strides,
        device: &device,
        query_raster_width: scene.raster_width,
    };
    let mut params = configuration.params(&call).unwrap();
    let address = |buffer: u8, offset: u32| placeholder_address(buffer) + u64::from(offset);
    params.value = address(0, value_offset);
    params.locations = address(1, sampling_offset);
    params.weights = address(2, sampling_offset);
    params.output = address(3, value_offset);
    let output_bytes = problem.output_len() * problem.dtype().size_bytes();
    let mut buffers = vec![
        Buffer::input(inputs.value.clone()).misaligned_by(value_offset),
        Buffer::input(inputs.locations.clone()).misaligned_by(sampling_offset),
        Buffer::input(inputs.weights.clone()).misaligned_by(sampling_offset),
        Buffer::output(output_bytes).misaligned_by(value_offset),
    ];
    if problem.levels().len() > INLINE_LEVELS {
        params.level_table = address(4, 0);
        buffers.push(Buffer::input(level_table_bytes(problem)));
    }
    let geometry = configuration.geometry;
    let mut launch = Launch::new(
        geometry.grid,
        geometry.block,
        geometry.shared_bytes as usize,
        params_bytes(&params),
    );
    launch.buffers = buffers;
    launch.order = *order;
    (launch, inputs)
}

fn level_table_bytes(problem: &Problem) -> Vec<u8> {
    let levels = level_geometry(problem).unwrap();
    levels
        .iter()
        .flat_map(|level| {
            let numbers = [level.height, level.width, level.row_pitch, level.first_sample];
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            bytes.extend(level.origin.to_le_bytes());
            bytes
        })
        .collect()
}

fn params_bytes(params: &ForwardParams) -> Vec<u8> {
    let bytes = size_of::<ForwardParams>();
    // SAFETY: `repr(C)` of integers whose sizes leave no padding (asserted by its layout test), so all
    // bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast::<u8>(), bytes) }.to_vec()
}

/// Kept beside the code that relies on it: no byte of the parameters is padding.
const _: () = assert!(size_of::<ForwardParams>() == 4 * 8 + 3 * 8 + 8 * 4 + 8 + INLINE_LEVELS * 24);
