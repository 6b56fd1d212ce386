//! Verification and timing, shown on a device that fails in every way a device can.

use std::sync::Mutex;

use crate::oracle::{Oracle, reference_of};
use crate::workload::{self, Sizes};
use crate::{
    BenchError, Breadth, Budget, Buffer, Device, HostTensors, Measurement, Planned, Progress,
    Selection, Stage, Work, WorkloadCase, bench_cases, bench_step,
};
use msdeform::{
    ATTENTION, DType, Direction, FROM_OFFSETS, Problem, Role, ValueLayout, VariantSpec, reference,
};

use crate::fixtures::{TestDevice, case};
use crate::verify::{Limits, Report, Verification, verify_case};

/// Takes three samples and ignores the time limit.
const BUDGET: Budget = Budget { seconds: 0.0, min_samples: 3, max_samples: 3 };

fn bench_case(
    case: &WorkloadCase<'_>,
    variants: &[&'static VariantSpec],
    budget: Budget,
    limits: Option<Limits>,
) -> Result<(Vec<Measurement>, Report), BenchError> {
    let planned = Planned { case: case.clone(), variants: variants.to_vec() };
    bench_cases(&TestDevice, &[planned], budget, limits, &|_| ())
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
    assert_eq!(report.checked.len(), TestDevice.variants().len());
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
fn an_unsupported_case_is_skipped_with_the_reason() {
    let case = case("edge_one_point", ValueLayout::HeadMajor);
    let report =
        verify_case(&TestDevice, &case, &TestDevice.variants(), Limits::default()).unwrap();
    assert!(report.checked.is_empty());
    assert_eq!(report.skipped.len(), TestDevice.variants().len());
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
    let (measurements, report) = bench_case(
        &case("edge_one_point", ValueLayout::Interleaved),
        &variants,
        BUDGET,
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
fn many_cases_at_once_give_the_results_of_single_ones() {
    let cases = [
        case("edge_one_point", ValueLayout::Interleaved),
        case("edge_point_lists", ValueLayout::Interleaved),
        case("edge_one_point", ValueLayout::HeadMajor),
    ];
    let variants = TestDevice.variants();
    let timed: Vec<_> = variants.into_iter().filter(|spec| spec.id != "fwd_refuses").collect();
    let planned = cases.clone().map(|case| Planned { case, variants: timed.clone() });
    let stages = Mutex::new(Vec::new());
    let said = |progress: Progress<'_>| {
        let mut stages = stages.lock().unwrap();
        match progress {
            Progress::Begin(stage, steps) => stages.push((stage, steps, 0)),
            Progress::Done(_) => stages.last_mut().unwrap().2 += 1,
        }
    };
    let (measured, report) =
        bench_cases(&TestDevice, &planned, BUDGET, Some(Limits::default()), &said).unwrap();
    // No variant takes the third case.
    let steps = 2 * timed.len() * 2;
    let expected =
        [(Stage::Compiling, steps, steps), (Stage::Verifying, 2, 2), (Stage::Timing, 2, 2)];
    assert_eq!(*stages.lock().unwrap(), expected);
    assert_eq!(report.skipped.len(), timed.len());
    let (mut alone, mut alone_report) = (Vec::new(), Report::default());
    for case in &cases {
        let (measured, report) = bench_case(case, &timed, BUDGET, Some(Limits::default())).unwrap();
        alone.extend(measured);
        alone_report.extend(report);
    }
    let rows = |measured: &[Measurement]| {
        let row =
            |one: &Measurement| format!("{:?} {:?} {:e}", one.label, one.samples_us, one.rel_l2);
        measured.iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(rows(&measured), rows(&alone));
    let checks = |report: &Report| {
        let check = |one: &Verification| format!("{:?} {}", one.label, one.pass);
        report.checked.iter().map(check).collect::<Vec<_>>()
    };
    assert_eq!(checks(&report), checks(&alone_report));
    assert!(!report.passed() && report.checked.iter().any(|check| check.pass));
}

#[test]
fn a_training_step_is_a_forward_and_a_backward_timed_as_one() {
    let case = case("edge_one_point", ValueLayout::Interleaved);
    let limits = Some(Limits::default());
    let (chosen, report) = bench_step(&TestDevice, &case, &[], BUDGET, limits).unwrap();
    assert_eq!((chosen.len(), report.checked.len()), (1, 2));
    let step = &chosen[0];
    assert_eq!(
        (step.label.variant.as_str(), step.label.direction.as_str()),
        ("fwd_exact+bwd_exact", "training")
    );
    assert_eq!(step.samples_us, [20.0; 3]);
    assert!(step.rel_l2 < 1e-6);
    let problem = case.problem().unwrap();
    let (forward, backward) =
        (Work::of(&problem, Direction::Forward), Work::of(&problem, Direction::Backward));
    assert_eq!(step.work.operations, forward.operations + backward.operations);
    assert_eq!(step.work.samples, forward.samples);

    let scaled: Vec<_> =
        TestDevice.variants().into_iter().filter(|spec| spec.id.ends_with("scaled")).collect();
    let (named, _) = bench_step(&TestDevice, &case, &scaled, BUDGET, None).unwrap();
    assert_eq!(named[0].label.variant, "fwd_scaled+bwd_scaled");
    assert!(named[0].rel_l2.is_nan(), "not verified");
}

#[test]
fn a_variant_that_fails_while_timed_is_an_error_with_its_name() {
    let variants: Vec<_> =
        TestDevice.variants().into_iter().filter(|spec| spec.id == "fwd_refuses").collect();
    let case = case("edge_one_point", ValueLayout::Interleaved);
    let error = bench_case(&case, &variants, Budget::default(), None).unwrap_err();
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
        operator: &ATTENTION,
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

/// The workload with the longest sides, samples anywhere in the image.
fn fused_on_long_sides() -> (Problem, HostTensors) {
    let sizes = Sizes { batch: Some(1), queries: Some(128) };
    let case = case("bevformer_tsa", ValueLayout::Interleaved);
    let case = WorkloadCase { operator: &FROM_OFFSETS, sizes, ..case };
    let problem = case.problem().unwrap();
    let inputs = case.inputs(&problem).unwrap();
    (problem, inputs)
}

fn stored(results: Vec<(Role, Vec<f64>)>) -> HostTensors {
    let in_f32 = |numbers: &[f64]| Buffer::from_numbers(DType::F32, numbers);
    results.into_iter().map(|(role, numbers)| (role, in_f32(&numbers))).collect()
}

#[test]
fn a_fused_call_that_is_off_by_a_thousandth_of_a_pixel_fails() {
    let (problem, inputs) = fused_on_long_sides();
    let variants = TestDevice.variants();
    let oracle = Oracle::new(&problem, &inputs, &variants);
    let moved_by = |pixels: f32| -> HostTensors {
        let mut moved = inputs.clone();
        let offsets = inputs[Role::Offsets].elements::<f32>().iter().map(|offset| offset + pixels);
        moved.set(Role::Offsets, &offsets.map(f64::from).collect::<Vec<_>>());
        moved
    };
    for direction in Direction::ALL {
        let spec = variants.iter().find(|spec| spec.direction == direction).unwrap();
        let checks = |pixels: f32| {
            let outputs = stored(reference_of(&problem, &moved_by(pixels), direction));
            oracle.check(&outputs, spec, &problem)
        };
        assert!(checks(0.0).iter().all(|check| check.pass));
        for check in checks(1e-3) {
            assert!(!check.pass && check.bound < 4e-5, "{check:?}");
        }
    }
}

/// As the kernels of a GPU do it: a location in `f32`, then the pixel.
#[test]
fn a_fused_call_with_coordinates_rounded_to_f32_passes() {
    let (problem, inputs) = fused_on_long_sides();
    let side = problem.levels()[0].width as f32;
    let [_, _, references, components] = problem.references_shape();
    assert_eq!((problem.levels()[0].height as f32, references, components), (side, 1, 2));
    let exact = inputs.widened();
    let per_query = problem.heads() * problem.samples();
    let offsets = exact.get(Role::Offsets).iter().enumerate().map(|(index, offset)| {
        let reference = exact.get(Role::References)[index / 2 / per_query * 2 + index % 2] as f32;
        let location = (*offset as f32).mul_add(1.0 / side, reference);
        let pixel = location.mul_add(side, -0.5);
        // The offset that leads there exactly.
        f64::from(pixel) + 0.5 - f64::from(reference) * f64::from(side)
    });
    let offsets: Vec<f64> = offsets.collect();
    let read = |role| if role == Role::Offsets { &offsets[..] } else { exact.get(role) };
    let spec = TestDevice.variants()[0];
    let outputs = stored(reference::compute(&problem, Direction::Forward, read));
    let checks = Oracle::new(&problem, &inputs, &[spec]).check(&outputs, spec, &problem);
    let error = checks[0].comparison.rel_l2;
    assert!(checks[0].pass && error > 0.5 * DType::F32.rel_l2_bound(), "{error:.1e}");
}
