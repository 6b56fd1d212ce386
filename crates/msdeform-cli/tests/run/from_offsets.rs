//! The fused operator.

use safetensors::Dtype::{self, BF16, F16, F32, F64};

use super::{
    OUTPUT, Place, SIZES, Tensor, by_hand, decode, printed_json, read_npy, strings, with, without,
};

/// The samples of [`by_hand`] as offsets from a point in pixels, with raw weights.
fn from_point(value: Dtype, sampling: Dtype, references: Dtype) -> Vec<Tensor> {
    let given = without(by_hand(value, sampling), "sampling_locations");
    let mut tensors = without(given, "attention_weights");
    tensors.extend([
        Tensor::floats("reference_points", references, &[1, 1, 1, 2], &[0.25, 0.25]),
        Tensor::floats("sampling_offsets", sampling, &[1, 1, 1, 1, 2, 2], &[0., 0., 0.5, 0.5]),
        Tensor::floats("attention_logits", sampling, &[1, 1, 1, 1, 2], &[0.25, 0.75]),
    ]);
    tensors
}

/// The output of a call of one query.
fn output(tensors: &[Tensor], options: &str) -> Vec<f64> {
    let place = Place::with_safetensors(tensors);
    place.ran(options, &[]);
    place.result("output").2
}

#[test]
fn offsets_of_every_format_lead_to_the_same_output_as_locations() {
    for (value, sampling, references) in
        [(F32, F32, F32), (F16, F16, F32), (BF16, BF16, F32), (F16, F32, F16), (F64, F64, F64)]
    {
        let tensors = from_point(value, sampling, references);
        assert_eq!(output(&tensors, "--raw-weights"), OUTPUT, "{value:?} {references:?}");
    }
}

#[test]
fn logits_are_softmaxed_unless_they_are_weights() {
    let even = Tensor::floats("attention_logits", F32, &[1, 1, 1, 1, 2], &[3.0, 3.0]);
    let tensors = with(from_point(F32, F32, F32), even);
    // Half of pixel 1, half of the mean of all four.
    assert_eq!(output(&tensors, ""), [1.75, 17.5]);
}

#[test]
fn boxes_anchors_and_nearest_pixels_follow_their_rules() {
    // Two points: a quarter of the box each, times what an offset of one is of it.
    let boxes = [
        Tensor::floats("reference_points", F32, &[1, 1, 1, 4], &[0.25, 0.25, 1.0, 0.5]),
        Tensor::floats("sampling_offsets", F32, &[1, 1, 1, 1, 2, 2], &[0., 0., 1.0, 2.0]),
    ];
    let tensors = boxes.into_iter().fold(from_point(F32, F32, F32), with);
    assert_eq!(output(&tensors, "--raw-weights"), OUTPUT);
    let half = Tensor::floats("sampling_offsets", F32, &[1, 1, 1, 1, 2, 2], &[0., 0., 0.5, 1.0]);
    let options = "--raw-weights --offset-scale 1.0";
    assert_eq!(output(&with(tensors, half), options), OUTPUT);

    let anchors = [
        Tensor::floats("reference_points", F32, &[1, 1, 2, 2], &[0.25, 0.25, 0.5, 0.5]),
        Tensor::floats("sampling_offsets", F32, &[1, 1, 1, 1, 2, 2], &[0.0; 4]),
    ];
    let tensors = anchors.into_iter().fold(from_point(F32, F32, F32), with);
    assert_eq!(output(&tensors, "--raw-weights --anchors"), OUTPUT);

    // trunc(0.25 * 2 + 0.5) and trunc(0.5 * 2 + 0.5): the last pixel both times.
    let options = "--raw-weights --nearest";
    assert_eq!(output(&from_point(F32, F32, F32), options), [4.0, 40.0]);
}

#[test]
fn shared_references_have_a_gradient_for_each_query() {
    let (queries, samples) = (3, [0.0, 0.0, 0.5, 0.5].repeat(3));
    let weights = [0.25, 0.75].repeat(queries);
    let tensors = [
        Tensor::floats("sampling_offsets", F32, &[1, queries, 1, 1, 2, 2], &samples),
        Tensor::floats("attention_logits", F32, &[1, queries, 1, 1, 2], &weights),
        Tensor::floats("grad_output", F32, &[1, queries, 2], &[2.0, 1.0].repeat(queries)),
    ];
    let tensors = tensors.into_iter().fold(from_point(F32, F32, F32), with);
    let place = Place::with_npy(&tensors);
    let report = printed_json(place.run("--backward --check --json"));
    let names = strings(&report["passes"][1]["checks"], "tensor");
    assert_eq!(names, ["grad_value", "grad_references", "grad_offsets", "grad_logits"]);
    assert_eq!(report["passed"], true);

    let (shape, _, bytes) = read_npy(&place.path("grad_reference_points.npy"));
    assert_eq!(shape, [1, 3, 1, 2]);
    let found = decode(F32, &bytes);
    assert!(found.iter().all(|x| x.is_finite()) && found[..2] == found[2..4], "{found:?}");
    let shape = |name: &str| read_npy(&place.path(name)).0;
    assert_eq!(shape("grad_sampling_offsets.npy"), [1, 3, 1, 1, 2, 2]);
    assert_eq!(shape("grad_attention_logits.npy"), [1, 3, 1, 1, 2]);
}

#[test]
fn files_that_do_not_fit_the_fused_operator_are_refused() {
    let refused = |tensors: &[Tensor], options: &str, code: i32, words: &str| {
        Place::with_safetensors(tensors).refused(code, options, &[words]);
    };
    let call = from_point(F32, F32, F32);
    let mut both = call.clone();
    both.extend(by_hand(F32, F32).into_iter().filter(|tensor| tensor.name == "sampling_locations"));
    refused(&both, "", 3, "`sampling_locations` is there too; keep one of them");
    refused(&by_hand(F32, F32), "--nearest", 2, "--nearest needs `sampling_offsets`");
    refused(&without(call.clone(), "reference_points"), "", 3, "`reference_points`");
    let flat = Tensor::floats("reference_points", F32, &[1, 1, 2], &[0.0; 2]);
    refused(&with(call.clone(), flat), "", 3, "expected [1, 1, 1, 2 or 4]");
    refused(&call, "--offset-scale 2", 2, "--offset-scale needs boxes");
    let none = Tensor::floats("reference_points", F32, &[1, 1, 0, 2], &[]);
    refused(&with(call, none), "--anchors", 3, "0 anchors");

    let place = Place::with_bin(&from_point(F32, F32, F32));
    let words = "the fused operator takes .npy or .safetensors files";
    place.refused(3, &format!("{SIZES} --dtype f32"), &[words]);
}
