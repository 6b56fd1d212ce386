//! Calls whose tensors are told by their roles.

#![allow(clippy::unwrap_used, reason = "tests may fail, and helpers of tests too")]

use msdeform::{CpuOptions, CpuPlan, Error, Offsets, Problem, Role, TensorView};

fn problem() -> Problem {
    let builder = Problem::builder().heads(2).channels(4).queries(3).points(2);
    builder.levels([(4, 5), (2, 3)]).build().unwrap()
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|index| (index * 7 % 11) as f32 / 11.0).collect()
}

#[test]
fn roles_lead_to_the_same_bits_as_arguments() {
    let problem = problem();
    let (value, locations) = (numbers(problem.value_len()), numbers(problem.locations_len()));
    let (weights, upstream) = (numbers(problem.weights_len()), numbers(problem.output_len()));
    let mut plan = CpuPlan::new(&problem, &CpuOptions::default()).unwrap();
    let inputs = [
        (Role::Value, TensorView::from(&value)),
        (Role::Locations, TensorView::from(&locations)),
        (Role::Weights, TensorView::from(&weights)),
        (Role::GradOutput, TensorView::from(&upstream)),
    ];
    let (mut expected, mut output) =
        (vec![0f32; problem.output_len()], vec![f32::NAN; problem.output_len()]);
    let in_order = [&value, &locations, &weights];
    plan.forward(in_order, &mut expected).unwrap();
    plan.run(inputs.clone(), [(Role::Output, (&mut output).into())]).unwrap();
    assert_eq!(output, expected);

    let (mut expected, mut grad) =
        (vec![0f32; problem.value_len()], vec![f32::NAN; problem.value_len()]);
    plan.backward(in_order, &upstream, [(Role::GradValue, &mut expected)]).unwrap();
    plan.run(inputs, [(Role::GradValue, (&mut grad).into())]).unwrap();
    assert_eq!(grad, expected);
}

#[test]
fn offsets_come_by_their_roles_too() {
    let rule = Offsets::from_boxes();
    let problem = problem().to_builder().offsets(rule).build().unwrap();
    let tensor = |role| numbers(problem.len_of(role));
    let (value, references) = (tensor(Role::Value), tensor(Role::References));
    let (offsets, logits) = (tensor(Role::Offsets), tensor(Role::Logits));
    let mut plan = CpuPlan::new(&problem, &CpuOptions::default()).unwrap();
    let (mut expected, mut output) =
        (vec![0f32; problem.output_len()], vec![f32::NAN; problem.output_len()]);
    plan.forward([&value, &references, &offsets, &logits], &mut expected).unwrap();
    let inputs = [
        (Role::Logits, TensorView::from(&logits)),
        (Role::Offsets, TensorView::from(&offsets)),
        (Role::References, TensorView::from(&references)),
        (Role::Value, TensorView::from(&value)),
    ];
    plan.run(inputs, [(Role::Output, (&mut output).into())]).unwrap();
    assert_eq!(output, expected);
}

#[test]
fn a_tensor_that_is_missing_or_of_no_use_is_named() {
    let problem = problem();
    let (value, locations) = (numbers(problem.value_len()), numbers(problem.locations_len()));
    let mut plan = CpuPlan::new(&problem, &CpuOptions::default()).unwrap();
    let mut output = vec![0f32; problem.output_len()];
    let inputs =
        [(Role::Value, TensorView::from(&value)), (Role::Locations, TensorView::from(&locations))];
    let error = plan.run(inputs.clone(), [(Role::Output, (&mut output).into())]).unwrap_err();
    assert!(matches!(error, Error::Tensors { tensor: "attention_weights", .. }), "{error}");
    let mut surplus = vec![0f32; problem.weights_len()];
    let error = plan.run(inputs, [(Role::GradLogits, (&mut surplus).into())]).unwrap_err();
    let words = "`grad_attention_logits` is to be written, but the call computes no such tensor; leave it out";
    assert_eq!(error.to_string(), words);
}
