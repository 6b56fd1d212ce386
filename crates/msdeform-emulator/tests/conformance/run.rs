//! Compiles a variant's cells, runs all scenes of each and compares.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use msdeform::{Direction, Mode};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::{Configuration, Variant};
use msdeform_cuda_lab::REGISTRY;
use msdeform_emulator::{EmulatedKernel, EmulatorError, Launch, Order};
use msdeform_lab::case::Samples;
use msdeform_lab::conformance::{Backend, Scene, Setting, scenes};
use msdeform_lab::oracle::{Expected, expect};
use msdeform_lab::runner::CudaRules;
use msdeform_lab::{Case, HostTensors};
use rayon::prelude::*;

use super::common::launch::{ConfiguredCall, entries, has_textures, specialisation};
use super::cover::{Cell, Cover, cover};
use super::report::{NOT_EMULATED, Outcome};

/// A scene of a cell that can be launched.
struct Planned {
    variant: &'static Variant,
    cell: Cell,
    scene: &'static Scene,
    case: Case,
    device: DeviceProps,
    configuration: Configuration,
    order: Order,
    block_order: Order,
}

impl Planned {
    fn name(&self) -> String {
        let Self { cell, scene, case, order, block_order, .. } = self;
        format!("{cell}, {} ({order:?} threads, {block_order:?} blocks): {case}", scene.name)
    }

    fn defines(&self) -> Vec<String> {
        self.configuration.defines(self.variant, &self.case.call(&self.device))
    }

    fn promises_the_same_bits(&self) -> bool {
        self.case.wants.is_some() && self.case.mode == Mode::Deterministic
    }

    /// The buffers it writes are the expected tensors in their order, then the workspace.
    fn launch(&self, id: &str, entries: &[String], inputs: &HostTensors) -> Launch {
        let Self { case, device, configuration, order, block_order, .. } = self;
        let (order, block_order) = (*order, *block_order);
        ConfiguredCall { id, entries, case, inputs, device, configuration, order, block_order }
            .launch()
    }
}

/// Multiprocessors of a second plan of a launch, which must give equal bits.
const OTHER_MULTIPROCESSORS: u32 = 3;

/// Emulating a backward kernel takes long, so only scenes that crowd samples have more queries than this.
const MOST_BACKWARD_QUERIES: usize = 20;

/// Runs variants; calls `finished` for each as soon as it is done.
///
/// The work of all of them is one list, longest tasks first, so that cores are idle only at its end and not at the end
/// of every variant.
pub fn run_variants(
    variants: &[&'static Variant],
    full: bool,
    finished: impl FnMut(&Outcome) + Send,
) {
    let plans: Vec<Plan> = variants.par_iter().map(|&variant| Plan::new(variant, full)).collect();
    let mut work = Vec::new();
    let mut progress = Vec::new();
    for (index, Plan { variant, groups, outcome }) in plans.into_iter().enumerate() {
        progress.push((groups.len(), outcome));
        work.extend(groups.into_iter().map(|group| (index, variant, group)));
    }
    let is_dear = |variant: &Variant| variant.spec.direction == Direction::Backward;
    work.sort_by_key(|(_, variant, group)| Reverse((is_dear(variant), group.cases.len())));
    let shared = Mutex::new((progress, finished));
    {
        let (progress, finished) = &mut *shared.lock().unwrap();
        for (_, outcome) in progress.iter().filter(|(groups, _)| *groups == 0) {
            finished(outcome);
        }
    }
    // A bridge hands out tasks one by one and in order; a slice would be cut in halves.
    work.into_iter().par_bridge().for_each(|(index, variant, group)| {
        let result = run_group(variant, group);
        let (progress, finished) = &mut *shared.lock().unwrap();
        let (left, outcome) = &mut progress[index];
        outcome.add(result);
        *left -= 1;
        if *left == 0 {
            // Parts may have finished in any order.
            outcome.failures.sort();
            finished(outcome);
        }
    });
}

/// The work of a variant.
struct Plan {
    variant: &'static Variant,
    groups: Vec<Group>,
    /// The outcome, so far with what is known before any run.
    outcome: Outcome,
}

/// Cases by the macros they are compiled with: one library and one process.
struct Group {
    defines: Vec<String>,
    cases: Vec<Planned>,
}

impl Plan {
    fn new(variant: &'static Variant, full: bool) -> Self {
        let spec = variant.spec;
        let mut outcome = Outcome { id: spec.id, ..Outcome::default() };
        let Cover { cells, refused } =
            cover(variant, full, |cell| plan(variant, cell, ordinary(), 0).map(|_| ()));
        outcome.cells = cells.len();
        for reason in refused {
            outcome.skipped.add(reason);
        }
        let mut groups: BTreeMap<Vec<String>, Vec<Planned>> = BTreeMap::new();
        for (index, cell) in cells.iter().enumerate() {
            let usual = usual_kernels(variant, cell);
            for (turn, scene) in scenes(Backend::Emulator, spec.direction).enumerate() {
                if !full && !scene.least_aligned && left_to_other_cells(variant, index, turn) {
                    continue;
                }
                match plan(variant, cell, scene, index + turn) {
                    Ok(case) => {
                        let defines = case.defines();
                        if !full && is_compiled_elsewhere(spec.direction, index, &usual, &defines) {
                            outcome.skipped.add("a kernel for this scene alone".to_owned());
                        } else {
                            groups.entry(defines).or_default().push(case);
                        }
                    }
                    Err(reason) => outcome.skipped.add(reason),
                }
            }
        }
        outcome.kernels = groups.len();
        let groups = groups.into_iter().map(|(defines, cases)| Group { defines, cases });
        Self { variant, groups: groups.collect(), outcome }
    }
}

/// A backward scene takes several times as long as a forward one, and rungs are many. After the first cell
/// each runs a part of them, in turns, so that every scene still meets every dtype. The scene whose tensors are as
/// little aligned as the configuration allows runs in every cell, because the needed alignment depends on shape and
/// knobs.
fn left_to_other_cells(variant: &Variant, cell: usize, scene: usize) -> bool {
    let every = match (variant.spec.direction, variant.spec.rung) {
        (Direction::Backward, _) => 3,
        (Direction::Forward, true) => 3,
        (Direction::Forward, false) => 1,
    };
    cell > 0 && !(cell + scene).is_multiple_of(every)
}

/// The macros of the ordinary scene, in either mode.
fn usual_kernels(variant: &'static Variant, cell: &Cell) -> Vec<Vec<String>> {
    let turns = [0, 3].into_iter();
    turns.filter_map(|turn| Some(plan(variant, cell, ordinary(), turn).ok()?.defines())).collect()
}

/// Compiling takes most of the time. If a backward scene needs a kernel of its own (a gradient without
/// packed rows, levels one pixel thin), every eighth cell compiles it.
fn is_compiled_elsewhere(
    direction: Direction,
    cell: usize,
    usual: &[Vec<String>],
    defines: &Vec<String>,
) -> bool {
    direction == Direction::Backward && !cell.is_multiple_of(8) && !usual.contains(defines)
}

/// The scene that all other scenes are variations of.
fn ordinary() -> &'static Scene {
    scenes(Backend::Emulator, Direction::Forward).next().unwrap()
}

/// The case, or the reason why the variant has none.
fn plan(
    variant: &'static Variant,
    cell: &Cell,
    scene: &'static Scene,
    turn: usize,
) -> Result<Planned, String> {
    // Half of the cases run in the deterministic mode.
    let mode = match turn / 3 % 2 {
        1 if variant.is_deterministic => Mode::Deterministic,
        _ => Mode::Fast,
    };
    let orders = (Order::ALL[turn % 3], Order::ALL[turn / 3 % 3]);
    plan_on(variant, cell, scene, mode, scene.multiprocessors, orders)
}

fn plan_on(
    variant: &'static Variant,
    cell: &Cell,
    scene: &'static Scene,
    mode: Mode,
    multiprocessors: u32,
    (order, block_order): (Order, Order),
) -> Result<Planned, String> {
    let setting = Setting { shape: cell.shape, scene };
    let problem = setting.problem((cell.dtype, cell.sampling_dtype), cell.layout);
    let mut problem = problem.map_err(|error| error.to_string())?;
    let is_backward = variant.spec.direction == Direction::Backward;
    let wants = is_backward.then_some(cell.gradients);
    if is_backward && scene.numbers.samples != Samples::OnePlace {
        let queries = problem.queries().min(MOST_BACKWARD_QUERIES);
        problem =
            problem.to_builder().queries(queries).build().map_err(|error| error.to_string())?;
    }
    let knobs = cell.knob.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    let case = scene.case(problem, wants).by(variant.spec.id, knobs);
    let mut case = Case { mode, ..case };
    let device = DeviceProps { multiprocessors, ..DeviceProps::h200() };
    let Some((_, configuration)) = CudaRules::new(device.clone(), REGISTRY).configure(&case)?
    else {
        return Err("nothing to compute: no kernel is launched".to_owned());
    };
    if configuration.pipeline.launches().any(|(_, geometry)| geometry.cluster > 1) {
        return Err(format!("a launch with clusters, {NOT_EMULATED}"));
    }
    if has_textures(&configuration) {
        return Err(format!("textures, {NOT_EMULATED}"));
    }
    if scene.least_aligned {
        case = case.least_aligned(&configuration);
    }
    Ok(Planned { variant, cell: *cell, scene, case, device, configuration, order, block_order })
}

/// The same case launched for another GPU and in other orders; a deterministic variant must give equal bits.
fn repetition(variant: &'static Variant, planned: &Planned) -> Option<Planned> {
    if !planned.promises_the_same_bits() {
        return None;
    }
    let Planned { cell, scene, case, .. } = planned;
    let turned = |order: Order| Order::ALL[(order as usize + 1) % 3];
    let orders = (turned(planned.order), turned(planned.block_order));
    let on =
        |multiprocessors| plan_on(variant, cell, scene, case.mode, multiprocessors, orders).ok();
    // Skips configurations that compile other code for another GPU.
    let elsewhere = on(OTHER_MULTIPROCESSORS).filter(|other| other.defines() == planned.defines());
    elsewhere.or_else(|| on(planned.device.multiprocessors))
}

/// Runs the cases that share their kernels.
fn run_group(variant: &'static Variant, Group { defines, cases }: Group) -> Outcome {
    let started = Instant::now();
    let id = variant.spec.id;
    let mut outcome = Outcome { id, ..Outcome::default() };
    let entries = entries(id, cases.iter().map(|case| &case.configuration));
    let compiled = EmulatedKernel::compile(&specialisation(variant, entries.clone(), defines));
    let kernel = match compiled {
        Ok(kernel) => kernel,
        Err(error) => {
            outcome.failures.push(format!("{}: {error}", cases[0].name()));
            return outcome;
        }
    };

    let inputs: Vec<HostTensors> = cases.iter().map(|planned| planned.case.inputs()).collect();
    let repetitions: Vec<Option<Planned>> =
        cases.iter().map(|planned| repetition(variant, planned)).collect();
    let mut launches = Vec::new();
    for ((case, inputs), again) in cases.iter().zip(&inputs).zip(&repetitions) {
        launches.push(case.launch(id, &entries, inputs));
        launches.extend(again.as_ref().map(|again| again.launch(id, &entries, inputs)));
    }
    let mut outputs = run_all(&kernel, &launches).into_iter();

    for ((case, inputs), again) in cases.iter().zip(&inputs).zip(&repetitions) {
        let Some(output) = outputs.next() else { break };
        let repeated = again.as_ref().and_then(|again| Some((again, outputs.next()?)));
        match output {
            Ok(tensors) => {
                outcome.launches += 1;
                let expected = expect(&case.case, inputs);
                outcome.compare(variant, case, &tensors, &expected);
                if let Some((again, repeated)) = repeated {
                    outcome.compare_bits(again, &tensors, repeated, &expected);
                }
            }
            Err(error) => outcome.failures.push(format!("{}: {error}", case.name())),
        }
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    outcome
}

/// Runs all cases in one process. If it fails, runs a process for each to find the case.
fn run_all(
    kernel: &EmulatedKernel,
    launches: &[Launch],
) -> Vec<Result<Vec<Vec<u8>>, EmulatorError>> {
    match kernel.launch_all(launches) {
        Ok(outputs) => outputs.into_iter().map(Ok).collect(),
        Err(_) => launches.par_iter().map(|launch| kernel.launch(launch)).collect(),
    }
}

impl Outcome {
    fn compare(
        &mut self,
        variant: &Variant,
        case: &Planned,
        tensors: &[Vec<u8>],
        expected: &[Expected],
    ) {
        for (expected, bytes) in expected.iter().zip(tensors) {
            let bound = variant.spec.rel_l2_bound(expected.dtype);
            let verdict = expected.compare(bytes, bound);
            let fault = verdict.fault.map(|fault| format!("{}: {fault}", case.name()));
            self.failures.extend(fault);
            self.note_error(expected.dtype.name(), (verdict.comparison.rel_l2, bound));
        }
    }

    fn compare_bits(
        &mut self,
        again: &Planned,
        tensors: &[Vec<u8>],
        repeated: Result<Vec<Vec<u8>>, EmulatorError>,
        expected: &[Expected],
    ) {
        self.repeated += 1;
        let name = again.name();
        let repeated = match repeated {
            Ok(repeated) => repeated,
            Err(error) => return self.failures.push(format!("{name}: {error}")),
        };
        for ((Expected { tensor, .. }, first), second) in expected.iter().zip(tensors).zip(repeated)
        {
            if *first != second {
                self.failures.push(format!("{name}: {tensor} has other bits than before"));
            }
        }
    }
}
