//! What a plan from offsets promises beyond the numbers: views, the reference, errors. `cpu_plan` has what both operators promise.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use msdeform::{
    CpuOptions, CpuPlan, DType, Direction, Error, Isa, Offsets, Problem, ProblemBuilder, Role,
    TensorView, reference,
};
use msdeform_devices::case::SourceMemory;
use msdeform_devices::runner::run_plan;
use msdeform_devices::{Case, Wants};

/// An encoder and a decoder.
fn problems() -> [ProblemBuilder; 2] {
    let base = Problem::builder().batch(2).points(3);
    // Miri, thousands of times slower, takes as much staging of less.
    let (base, queries) = if cfg!(miri) {
        (base.heads(1).channels(5).levels([(2, 3), (1, 2)]), [2, 1])
    } else {
        (base.heads(3).channels(19).levels([(7, 9), (4, 5), (2, 3)]), [60, 4])
    };
    [
        base.clone().queries(queries[0]).offsets(Offsets::from_points()),
        base.queries(queries[1]).offsets(Offsets::from_boxes().one_for_all_levels()),
    ]
}

fn plan(problem: &Problem, threads: usize, isa: Isa) -> CpuPlan {
    CpuPlan::new(problem, &CpuOptions { threads: Some(threads), isa: Some(isa) }).unwrap()
}

#[test]
fn rows_of_one_projection_and_shared_references_give_the_bits_of_packed_tensors() {
    let problem = problems()[0].clone().build().unwrap();
    for wants in [Wants::Output, Wants::everything(Direction::Backward)] {
        let mut case = Case::plain(problem.clone(), wants);
        let packed = case.inputs();
        let mut plan = plan(&problem, 1, Isa::best());
        let expected = run_plan(&mut plan, &case, &packed).unwrap();
        case.source_memory = SourceMemory::Projection;
        let projected = case.inputs();
        assert_eq!(packed, projected, "the same call");
        assert_eq!(run_plan(&mut plan, &case, &projected).unwrap(), expected);
    }
}

#[test]
fn f64_goes_to_the_reference_and_fast_formats_to_the_plan() {
    let problem = Problem::builder().heads(2).channels(3).queries(2).points(2).levels([(3, 4)]);
    let problem = problem.offsets(Offsets::from_boxes()).dtype(DType::F64).build().unwrap();
    let numbers = |len: usize, scale: f64| -> Vec<f64> {
        (0..len).map(|i| 0.5 + scale * (i as f64 * 1.7).sin()).collect()
    };
    let value = numbers(problem.value_len(), 1.0);
    // Two references per query, of which the first is used: strides are followed in the reference too.
    let padded = numbers(2 * problem.references_len(), 0.3);
    let view = TensorView::strided(padded.as_slice(), &[1, 2, 1, 4], &[16, 8, 4, 1]).unwrap();
    let references = [&padded[..4], &padded[8..12]].concat();
    let offsets = numbers(problem.locations_len(), 0.6);
    let logits = numbers(problem.weights_len(), 2.0);
    let mut output = vec![f64::NAN; problem.output_len()];
    let [of_value, of_offsets, of_logits] = [&value, &offsets, &logits].map(TensorView::from);
    let inputs = [of_value, view, of_offsets, of_logits];
    msdeform::forward(&problem, inputs.clone(), &mut output).unwrap();
    let wanted = |direction: Direction, output: &[f64]| -> Vec<(Role, Vec<f64>)> {
        reference::compute(&problem, direction, |role| match role {
            Role::Value => &value,
            Role::References => &references,
            Role::Offsets => &offsets,
            Role::Logits => &logits,
            _ => output,
        })
    };
    assert_eq!(wanted(Direction::Forward, &[]), [(Role::Output, output.clone())]);

    let mut grad_references = vec![f64::NAN; problem.references_len()];
    let mut grad_logits = vec![f64::NAN; problem.weights_len()];
    let gradients =
        [(Role::GradReferences, &mut grad_references), (Role::GradLogits, &mut grad_logits)];
    msdeform::backward(&problem, inputs, &output, gradients).unwrap();
    let expected = wanted(Direction::Backward, &output);
    assert!(expected.contains(&(Role::GradReferences, grad_references)));
    assert!(expected.contains(&(Role::GradLogits, grad_logits)));

    let single = problem.to_builder().dtype(DType::F32).sampling_dtype(DType::F32);
    let single = single.reference_dtype(DType::F32).build().unwrap();
    let narrow = |numbers: &[f64]| numbers.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let mut fast = vec![f32::NAN; single.output_len()];
    let (value, references) = (narrow(&value), narrow(&references));
    let (offsets, logits) = (narrow(&offsets), narrow(&logits));
    let inputs = [&value, &references, &offsets, &logits];
    msdeform::forward(&single, inputs, &mut fast).unwrap();
    assert!(fast.iter().zip(&output).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-5));
}

#[test]
fn inputs_of_another_operator_are_refused_by_what_the_problem_reads() {
    for dtype in [DType::F32, DType::F64] {
        let given = Problem::builder().queries(2).levels([(3, 4)]).dtype(dtype).build().unwrap();
        let from = given.to_builder().offsets(Offsets::from_points()).build().unwrap();
        let zeros = vec![0f32; 12];
        let of_fused = "the call has 3 inputs, but the fused operator of the problem reads `value`, `reference_points`, \
            `sampling_offsets`, `attention_logits`; pass those in this order, or build the problem without `.offsets(rule)`";
        let error = msdeform::forward(&from, [&zeros; 3], &mut zeros.clone()).unwrap_err();
        assert_eq!(error.to_string(), of_fused);
        let nothing: [(Role, &mut Vec<f32>); 0] = [];
        let error = msdeform::backward(&from, [&zeros; 3], &zeros, nothing).unwrap_err();
        assert_eq!(error.to_string(), of_fused);
        let error = msdeform::forward(&given, [&zeros; 4], &mut zeros.clone()).unwrap_err();
        assert!(matches!(error, Error::Inputs { found: 4, .. }), "{error:?}");
        assert!(error.to_string().ends_with("build the problem with `.offsets(rule)`"), "{error}");
    }
    let problem = problems()[0].clone().build().unwrap();
    let len = |count: usize| vec![0f32; count];
    let (value, offsets) = (len(problem.value_len()), len(problem.locations_len()));
    let (references, logits) = (len(problem.references_len() - 1), len(problem.weights_len()));
    let mut output = len(problem.output_len());
    let inputs = [&value, &references, &offsets, &logits];
    let error = msdeform::forward(&problem, inputs, &mut output).unwrap_err();
    let words = format!("`reference_points` has {} elements", problem.references_len() - 1);
    assert!(error.to_string().contains(&words));
}

#[test]
fn a_description_says_what_its_offsets_are() {
    let problem = problems()[1].clone().dtype(DType::F16).reference_dtype(DType::F32);
    let words = problem.build().unwrap().to_string();
    assert!(words.ends_with("from offsets (boxes per query, softmax, f32 references)"), "{words}");
}
