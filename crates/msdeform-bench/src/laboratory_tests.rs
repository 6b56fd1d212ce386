//! Verification and timing, shown on a device that fails in every way a device can.

use std::collections::BTreeMap;

use msdeform::{DType, DeviceKind, Direction, Mode, Numerics, Problem, ValueLayout, VariantSpec};

use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::BackwardCall;
use msdeform_cuda_lab::models::{self, Specialisation};
use msdeform_tuning::{CallClass, Origin, Tuning};

use crate::device::{
    Bandwidth, Choice, Device, DeviceError, DeviceId, Outputs, Prepared, Setting, Timing,
};
use crate::verify::{Limits, reference_of, verify_case};
use crate::workload::{self, Sizes};
use crate::{
    Breadth, Budget, Buffer, Case, Ceiling, HostTensors, Locations, STANDARD_SEED, Selection,
    bench_case, bench_step,
};

/// What a variant of the test device does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Every result is a little too large.
    Scaled(f64),
    /// One element is never written.
    Unwritten,
    /// Nothing is written on the second run.
    OnlyOnce,
    /// The last bits differ from run to run, against the promise.
    Unsteady,
    /// The run returns an error.
    Refuses,
}

const fn spec(id: &'static str, direction: Direction) -> VariantSpec {
    VariantSpec {
        id,
        direction,
        device: DeviceKind::Cpu,
        dtypes: &DType::FAST,
        layouts: &[ValueLayout::Interleaved],
        source: "test",
        idea: "the reference itself",
        why: "to test the tests",
        numerics: Numerics::Contract,
        rung: false,
    }
}

static VARIANTS: [(VariantSpec, Fault); 8] = [
    (spec("fwd_exact", Direction::Forward), Fault::None),
    (spec("fwd_scaled", Direction::Forward), Fault::Scaled(1.0 + 1e-4)),
    (spec("fwd_unwritten", Direction::Forward), Fault::Unwritten),
    (spec("fwd_once", Direction::Forward), Fault::OnlyOnce),
    (spec("fwd_refuses", Direction::Forward), Fault::Refuses),
    (spec("bwd_exact", Direction::Backward), Fault::None),
    (spec("bwd_scaled", Direction::Backward), Fault::Scaled(1.0 + 1e-4)),
    (spec("bwd_unsteady", Direction::Backward), Fault::Unsteady),
];

pub(crate) struct TestDevice;

impl Device for TestDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cpu
    }
    fn slug(&self) -> &str {
        "test"
    }
    fn name(&self) -> &str {
        "test device"
    }
    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn threads(&self) -> Option<usize> {
        Some(1)
    }
    fn variants(&self) -> Vec<&'static VariantSpec> {
        VARIANTS.iter().map(|(spec, _)| spec).collect()
    }
    fn baseline(&self, direction: Direction) -> Option<&'static VariantSpec> {
        self.variants().into_iter().find(|spec| spec.direction == direction)
    }
    fn builtin(
        &self,
        _: &Problem,
        direction: Direction,
    ) -> Result<&'static VariantSpec, DeviceError> {
        Ok(self.baseline(direction).unwrap())
    }
    fn dispatch(
        &self,
        problem: &Problem,
        direction: Direction,
    ) -> Result<&'static VariantSpec, DeviceError> {
        self.builtin(problem, direction)
    }
    fn tuning(&self) -> &Tuning {
        &Tuning::OFF
    }
    fn origin(&self) -> Origin {
        Origin {
            device: "test device".into(),
            compute_capability: None,
            multiprocessors: None,
            msdeform: "0".into(),
            fingerprint: String::new(),
        }
    }
    fn class(&self, problem: &Problem, direction: Direction) -> CallClass {
        CallClass::of(problem, direction, Mode::Fast, Some(1))
    }
    fn settings(&self, variant: &VariantSpec, _: &Problem) -> Vec<Setting> {
        if variant.id != "fwd_exact" {
            return Vec::new();
        }
        // Each gains what its value says; the fourth of each is a trap.
        let setting = |name| Setting { name, value: 1, values: &[1, 2, 3, 4] };
        vec![setting("SPEED"), setting("WIDTH")]
    }
    fn supports(&self, variant: &VariantSpec, problem: &Problem) -> Result<(), DeviceError> {
        variant.check_lists(problem).map_err(|error| DeviceError::Unsupported {
            variant: variant.id,
            reason: error.to_string(),
        })
    }
    fn prepare<'a>(
        &self,
        variant: &VariantSpec,
        problem: &Problem,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError> {
        let (spec, fault) = VARIANTS.iter().find(|(spec, _)| spec.id == variant.id).unwrap();
        let outputs = Outputs::poisoned(problem, spec.direction);
        Ok(Box::new(Run {
            spec,
            fault: *fault,
            problem: problem.clone(),
            inputs,
            outputs,
            runs: 0,
            time_us: 10.0,
        }))
    }
    /// A forward, a backward, and one without the gradient of the values.
    fn specialisations(&self) -> Vec<Specialisation> {
        let mut all = models::specialisations(&DeviceProps::h200());
        all.retain(|found| found.problem.dtype() == DType::F32);
        all.sort_by_key(|found| found.problem.weights_len());
        let mut first = |wanted: fn(&Option<BackwardCall>) -> bool| {
            let at = all.iter().position(|found| wanted(&found.backward)).unwrap();
            all.swap_remove(at)
        };
        vec![
            first(Option::is_none),
            first(|backward| backward.is_some_and(|backward| backward.gradients.value)),
            first(|backward| backward.is_some_and(|backward| !backward.gradients.value)),
        ]
    }
    /// Wrong where all gradients are asked for.
    fn prepare_specialisation<'a>(
        &self,
        specialisation: &Specialisation,
        inputs: &'a HostTensors,
    ) -> Result<Box<dyn Prepared + 'a>, DeviceError> {
        let variant = match specialisation.backward {
            None => &VARIANTS[0].0,
            Some(backward) if backward.gradients.value => &VARIANTS[6].0,
            Some(_) => &VARIANTS[5].0,
        };
        self.prepare(variant, &specialisation.problem, inputs)
    }
    fn probe_bandwidth(&self) -> Result<Bandwidth, DeviceError> {
        Ok(Bandwidth { copy_gb_per_s: 1.0, buffer_bytes: 1, threads: 1, in_cache: false })
    }
    fn ceilings(&self, _before: &mut dyn FnMut(&str)) -> Result<Vec<Ceiling>, DeviceError> {
        Ok(Vec::new())
    }
}

struct Run<'a> {
    spec: &'static VariantSpec,
    fault: Fault,
    problem: Problem,
    inputs: &'a HostTensors,
    outputs: Outputs,
    runs: usize,
    time_us: f64,
}

impl Run<'_> {
    fn store(&self, exact: &[f64]) -> Buffer {
        let scale = match self.fault {
            Fault::Scaled(scale) => scale,
            Fault::Unsteady => 1.0 + 1e-7 * self.runs as f64,
            _ => 1.0,
        };
        let mut elements: Vec<f32> = exact.iter().map(|x| (x * scale) as f32).collect();
        if self.fault == Fault::Unwritten {
            elements[17] = f32::NAN;
        }
        Buffer::F32(elements)
    }
}

impl Prepared for Run<'_> {
    fn poison(&mut self) -> Result<(), DeviceError> {
        self.outputs.poison();
        Ok(())
    }
    fn run(&mut self) -> Result<(), DeviceError> {
        self.runs += 1;
        if self.fault == Fault::Refuses {
            let source = msdeform::Error::UnknownVariant { id: "broken".into() };
            return Err(DeviceError::Run { variant: self.spec.id, source });
        }
        if self.fault == Fault::OnlyOnce && self.runs > 1 {
            return Ok(());
        }
        let exact = reference_of(&self.problem, self.inputs, self.spec.direction).into_iter();
        self.outputs = exact.map(|(role, exact)| (role, self.store(&exact))).collect();
        Ok(())
    }
    fn switch(&mut self, choice: &Choice) -> Result<(), DeviceError> {
        let found = VARIANTS.iter().find(|(spec, _)| spec.id == choice.variant.id).unwrap();
        (self.spec, self.fault, self.runs) = (&found.0, found.1, 0);
        let knob = |name: &str| choice.knobs.get(name).copied().unwrap_or(1) as f64;
        self.time_us = 12.0 / (knob("SPEED") * knob("WIDTH"));
        if knob("SPEED") > 3.0 {
            self.fault = Fault::Scaled(1.0 + 1e-4);
        }
        if knob("WIDTH") > 3.0 {
            self.fault = Fault::Refuses;
        }
        Ok(())
    }
    fn read(&mut self) -> Result<Outputs, DeviceError> {
        Ok(self.outputs.clone())
    }
    fn time(&mut self, _clock: Timing, count: usize) -> Result<Vec<f64>, DeviceError> {
        // A clock that a test can predict: the scaled variants take half the time.
        let time_us = if self.fault == Fault::None { self.time_us } else { 5.0 };
        Ok(vec![time_us; count])
    }
    fn clocks(&self) -> Vec<Timing> {
        vec![Timing::Cpu]
    }
    fn promises_same_bits(&self) -> bool {
        self.fault != Fault::OnlyOnce
    }
    fn mode(&self) -> &'static str {
        "default"
    }
    fn workspace_bytes(&self) -> usize {
        0
    }
}

pub(crate) fn case(name: &str, layout: ValueLayout) -> Case<'static> {
    Case {
        workload: workload::find(name).unwrap(),
        locations: Locations::Uniform,
        layout,
        dtype: DType::F32,
        sizes: Sizes::default(),
        seed: STANDARD_SEED,
    }
}

#[test]
fn exact_variants_pass_and_every_fault_is_found() {
    let report = verify_case(
        &TestDevice,
        &case("edge_point_lists", ValueLayout::Interleaved),
        &TestDevice.variants(),
        Limits::default(),
    )
    .unwrap();
    let passed: Vec<&str> = report
        .checked
        .iter()
        .filter(|check| check.pass)
        .map(|check| check.label.variant.as_str())
        .collect();
    assert_eq!(passed, ["fwd_exact", "bwd_exact"]);
    assert_eq!(report.checked.len(), VARIANTS.len());
    assert!(!report.passed());
    let of = |id: &str| report.checked.iter().find(|check| check.label.variant == id).unwrap();
    assert!((of("fwd_scaled").worst_rel_l2() - 1e-4).abs() < 1e-6);
    assert!(of("fwd_unwritten").worst_rel_l2().is_nan());
    assert!(of("fwd_once").worst_rel_l2().is_nan());
    assert!(of("fwd_refuses").error.as_ref().unwrap().contains("broken"));
    assert_eq!(of("bwd_scaled").tensors.len(), 3);
    assert!(of("bwd_scaled").tensors.iter().all(|tensor| !tensor.pass));
    assert!(of("bwd_unsteady").error.as_ref().unwrap().contains("other bits"));
}

#[test]
fn what_a_variant_cannot_do_is_skipped_by_name_and_with_the_reason() {
    let case = case("edge_one_point", ValueLayout::HeadMajor);
    let report =
        verify_case(&TestDevice, &case, &TestDevice.variants(), Limits::default()).unwrap();
    assert!(report.checked.is_empty());
    assert_eq!(report.skipped.len(), VARIANTS.len());
    let skip = &report.skipped[0];
    assert_eq!(
        (skip.label.variant.as_str(), skip.label.layout.as_str()),
        ("fwd_exact", "head_major")
    );
    assert!(skip.reason.contains("head_major"), "{}", skip.reason);
}

#[test]
fn large_workloads_are_thinned_out_and_small_ones_are_not() {
    let limits = Limits::default();
    let large = limits.shrink(&case("ddetr_enc", ValueLayout::Interleaved)).unwrap();
    assert_eq!(large.batch(), 1);
    assert!(large.queries() >= 16 && large.queries() < 1000, "{large}");
    assert_eq!(large.levels().len(), 4);
    let small = case("edge_point_lists", ValueLayout::Interleaved);
    assert_eq!(limits.shrink(&small).unwrap(), small.problem().unwrap());
    let full = case("rtdetr_dec", ValueLayout::Interleaved);
    assert_eq!(Limits::NONE.shrink(&full).unwrap(), full.problem().unwrap());
}

#[test]
fn times_come_with_their_error_and_their_speedup() {
    let variants: Vec<_> =
        TestDevice.variants().into_iter().filter(|spec| spec.id != "fwd_refuses").collect();
    let budget = Budget { seconds: 0.0, min_samples: 3, max_samples: 3 };
    let (measurements, report) = bench_case(
        &TestDevice,
        &case("edge_one_point", ValueLayout::Interleaved),
        &variants,
        budget,
        Some(Limits::default()),
    )
    .unwrap();
    assert_eq!(measurements.len(), variants.len());
    assert_eq!(report.checked.len(), variants.len());
    let of = |id: &str| measurements.iter().find(|m| m.label.variant == id).unwrap();
    assert_eq!(of("fwd_exact").samples_us, [10.0; 3]);
    assert_eq!(of("fwd_exact").speedup_among(&measurements), Some(1.0));
    assert_eq!(of("fwd_scaled").speedup_among(&measurements), Some(2.0));
    assert_eq!(of("bwd_scaled").speedup_among(&measurements), Some(2.0));
    assert!(of("fwd_exact").rel_l2 < 1e-6);
    assert!(of("fwd_unwritten").rel_l2.is_nan());
    let expected = of("fwd_exact").work.samples as f64 / 10e-6;
    assert!((of("fwd_exact").throughput().samples_per_s / expected - 1.0).abs() < 1e-9);
}

#[test]
fn a_training_step_is_a_forward_and_a_backward_timed_as_one() {
    let case = case("edge_one_point", ValueLayout::Interleaved);
    let budget = Budget { seconds: 0.0, min_samples: 3, max_samples: 3 };
    let limits = Some(Limits::default());
    let (chosen, report) = bench_step(&TestDevice, &case, &[], budget, limits).unwrap();
    assert_eq!((chosen.len(), report.checked.len()), (1, 2));
    let step = &chosen[0];
    assert_eq!(
        (step.label.variant.as_str(), step.label.direction.as_str()),
        ("fwd_exact+bwd_exact", "training")
    );
    assert_eq!(step.samples_us, [20.0; 3]);
    assert!(step.rel_l2 < 1e-6);
    let problem = case.problem().unwrap();
    let (forward, backward) = (
        crate::Work::of(&problem, Direction::Forward),
        crate::Work::of(&problem, Direction::Backward),
    );
    assert_eq!(step.work.operations, forward.operations + backward.operations);
    assert_eq!(step.work.samples, forward.samples);

    let scaled: Vec<_> =
        TestDevice.variants().into_iter().filter(|spec| spec.id.ends_with("scaled")).collect();
    let (named, _) = bench_step(&TestDevice, &case, &scaled, budget, None).unwrap();
    assert_eq!(named[0].label.variant, "fwd_scaled+bwd_scaled");
    assert!(named[0].rel_l2.is_nan(), "not verified");
}

#[test]
fn a_variant_that_fails_while_timed_is_an_error_with_its_name() {
    let variants: Vec<_> =
        TestDevice.variants().into_iter().filter(|spec| spec.id == "fwd_refuses").collect();
    let case = case("edge_one_point", ValueLayout::Interleaved);
    let error = bench_case(&TestDevice, &case, &variants, Budget::default(), None).unwrap_err();
    assert!(error.to_string().contains("fwd_refuses"), "{error}");
}

#[test]
fn selections_take_what_workloads_list_unless_told() {
    let mut selection = Selection {
        rungs: false,
        workloads: vec![workload::find("edge_one_pixel").unwrap().clone()],
        locations: Vec::new(),
        layouts: Vec::new(),
        breadth: Breadth::All,
        dtypes: vec![DType::F32, DType::F16],
        directions: vec![Direction::Forward],
        variants: Vec::new(),
        sizes: Sizes::default(),
        seed: 0,
    };
    assert_eq!(selection.cases().len(), 2 * 3 * 2);
    assert_eq!(selection.variants_of(&TestDevice).unwrap().len(), 5);
    selection.breadth = Breadth::First;
    assert_eq!(selection.cases().len(), 2);
    selection.layouts = vec![ValueLayout::HeadMajor];
    assert!(selection.cases().iter().all(|case| case.layout == ValueLayout::HeadMajor));
    selection.variants = vec!["fwd_exact".into(), "bwd_exact".into()];
    assert_eq!(selection.variants_of(&TestDevice).unwrap().len(), 1);
    selection.variants = vec!["fwd_exactly".into()];
    let message = selection.variants_of(&TestDevice).unwrap_err().to_string();
    assert!(message.contains("fwd_exactly") && message.contains("bwd_exact"), "{message}");
}

#[test]
fn the_dispatcher_is_within_five_percent_of_the_best_variant_in_the_newest_run_of_a_gpu() {
    let records = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let records = crate::record::load_releases(&records).unwrap();
    let on_gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
    let losses = on_gpu.map_or_else(Vec::new, crate::overview::dispatch_losses);
    assert!(!losses.is_empty(), "no record of a GPU says what was dispatched");
    let newest = losses.iter().map(|loss| loss.chosen.date.clone()).max();
    for loss in losses.iter().filter(|loss| Some(&loss.chosen.date) == newest.as_ref()) {
        let (chosen, fastest) = (&loss.chosen, &loss.fastest);
        assert!(
            loss.ratio() <= 1.05,
            "{} {} {} {}: {} takes {} us, {} {} us",
            chosen.workload,
            chosen.locations,
            chosen.dtype,
            chosen.direction,
            chosen.variant,
            chosen.median_us,
            fastest.variant,
            fastest.median_us
        );
    }
}
