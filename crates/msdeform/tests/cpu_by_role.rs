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
fn roles_lead_to_the_same_bits_as_the_order_of_the_operator() {
    let fused = problem().to_builder().offsets(Offsets::from_boxes()).build().unwrap();
    for problem in [problem(), fused] {
        let mut plan = CpuPlan::new(&problem, &CpuOptions::default()).unwrap();
        let of = |role| (role, numbers(problem.len_of(role)));
        let inputs: Vec<(Role, Vec<f32>)> =
            problem.operator().inputs.iter().copied().map(of).collect();
        let upstream = numbers(problem.output_len());
        let in_order = || inputs.iter().map(|(_, numbers)| numbers);
        let all = inputs.iter().map(|(role, numbers)| (*role, TensorView::from(numbers)));
        let by_role = all.rev().chain([(Role::GradOutput, TensorView::from(&upstream))]);

        let [mut expected, mut output] = [(); 2].map(|()| vec![f32::NAN; problem.output_len()]);
        plan.forward(in_order(), &mut expected).unwrap();
        plan.run(by_role.clone(), [(Role::Output, (&mut output).into())]).unwrap();
        assert!(expected.iter().all(|number| number.is_finite()));
        assert_eq!(output, expected);

        let [mut expected, mut grad] = [(); 2].map(|()| vec![f32::NAN; problem.value_len()]);
        plan.backward(in_order(), &upstream, [(Role::GradValue, &mut expected)]).unwrap();
        plan.run(by_role, [(Role::GradValue, (&mut grad).into())]).unwrap();
        assert_eq!(grad, expected);
    }
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
