//! What is refused, with messages that name the file, the tensor, what was expected and what was found;
//! and that nothing is written then.

use safetensors::Dtype::{BF16, F16, F32, F64, I64, U8};

use super::{Place, SIZES, Tensor, by_hand, expect, printed_json, with, without};

/// The code of a command line that is wrong, and of a device, a system or data that failed.
const USAGE: i32 = 2;
const FAILED: i32 = 3;

#[track_caller]
fn refused_safetensors(code: i32, tensors: &[Tensor], options: &str, words: &[&str]) {
    let place = Place::with_safetensors(tensors);
    place.refused(code, options, &[words, &["call.safetensors"]].concat());
}

#[test]
fn missing_inputs_are_named() {
    Place::new("nowhere").refused(USAGE, "", &["nowhere", "no such file or folder"]);
    Place::new("").refused(USAGE, "", &["neither value.npy nor value.bin"]);
    let place = Place::new("x.pt");
    std::fs::write(&place.input, b"PK").unwrap();
    place.refused(USAGE, "", &["x.pt", "expected a .safetensors file"]);
    for name in ["value", "sampling_locations", "attention_weights", "spatial_shapes"] {
        let tensors = without(by_hand(F32, F32), name);
        refused_safetensors(FAILED, &tensors, "", &[&format!("no tensor `{name}`")]);
    }
    let tensors = without(by_hand(F32, F32), "grad_output");
    refused_safetensors(FAILED, &tensors, "--backward", &["no tensor `grad_output`"]);
    let place = Place::with_npy(&without(by_hand(F32, F32), "attention_weights"));
    place.refused(FAILED, "", &["no file attention_weights.npy"]);
    place.write_bin(&by_hand(F32, F32));
    place.refused(USAGE, "", &["both value.npy and value.bin"]);
}

#[test]
fn wrong_shapes_and_types_are_named_with_what_was_expected() {
    for (name, dtype, shape, words) in [
        (
            "value",
            F32,
            &[1, 3, 1, 2][..],
            "shape [1, 3, 1, 2], expected [1, 4, 1, D] (interleaved)",
        ),
        ("value", F32, &[2, 4, 1, 2], "shape [2, 4, 1, 2], expected [1, 4, 1, D]"),
        ("value", I64, &[1, 4, 1, 2], "is i64, expected f32"),
        ("value", U8, &[1, 4, 1, 2], "is u8, expected f32, f16, bf16 or f64"),
        (
            "sampling_locations",
            F32,
            &[1, 1, 1, 2, 2, 2],
            "shape [1, 1, 1, 2, 2, 2], expected [N, Lq, M, L, P, 2] with L = 1",
        ),
        (
            "attention_weights",
            F32,
            &[1, 1, 1, 1, 3],
            "shape [1, 1, 1, 1, 3], expected [1, 1, 1, 1, 2]",
        ),
        ("attention_weights", F64, &[1, 1, 1, 1, 2], "is f64 with f32 values"),
        ("spatial_shapes", I64, &[2], "shape [2], expected [L, 2]"),
        ("spatial_shapes", F32, &[1, 2], "is f32, expected i64 or i32"),
        ("level_start_index", I64, &[2], "2 entries for 1 levels"),
        ("grad_output", F32, &[1, 2, 1], "shape [1, 2, 1], expected [1, 1, 2]"),
        ("grad_output", F16, &[1, 1, 2], "is f16, expected f32 like the values"),
    ] {
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
        let tensor = Tensor { name, dtype, shape: shape.to_vec(), bytes };
        let words = format!("`{name}`: {words}");
        refused_safetensors(FAILED, &with(by_hand(F32, F32), tensor), "--backward", &[&words]);
    }
    for (name, shape, numbers, words) in [
        ("level_start_index", &[1][..], &[-1][..], "must not be negative"),
        ("level_start_index", &[1], &[1], "expected [1, 5, 1, D] (interleaved)"),
        ("spatial_shapes", &[1, 2], &[2, 0], "level 0 is 2 x 0"),
        ("spatial_shapes", &[1, 2], &[i64::MAX, i64::MAX], "more elements"),
    ] {
        let tensor = Tensor::integers(name, shape, numbers);
        refused_safetensors(FAILED, &with(by_hand(F32, F32), tensor), "", &[words]);
    }
    let words = "is f32, but the command line has f16";
    refused_safetensors(USAGE, &by_hand(F32, F32), "--dtype f16", &[words]);
    let place = Place::with_npy(&by_hand(BF16, BF16));
    place.refused(USAGE, "", &["value.npy", "two raw bytes", "--dtype bf16"]);
}

#[test]
fn sizes_that_contradict_the_files_are_refused() {
    let place = Place::with_safetensors(&by_hand(F32, F32));
    for (options, words) in [
        ("--heads 2", "--heads is 2"),
        ("--batch 3", "--batch is 3"),
        ("--queries 9", "--queries is 9"),
        ("--channels 4", "--channels is 4"),
        ("--points 3", "--points adds up to 3"),
        ("--points 1,1", "--points has 2 entries for 1 levels"),
        ("--levels 2x3", "--levels is [(2, 3)]"),
        ("--layout head_major_padded", "expected [1, 1, 16, D] (head_major_padded)"),
        ("--variant fwd_nobody", "no variant `fwd_nobody`"),
        ("--variant bwd_cpu_scalar", "--backward"),
    ] {
        place.refused(USAGE, options, &[words]);
    }
    place.refused(FAILED, "--device cuda:99", &["cuda:99"]);
}

#[test]
fn raw_files_without_sizes_say_which_are_missing() {
    let place = Place::with_bin(&by_hand(F16, F16));
    place.refused(USAGE, "", &["value.bin", "--heads, --channels, --points, --dtype"]);
    let sizes = format!("{SIZES} --dtype f16");
    let words = ["attention_weights.bin", "--queries or --sampling-dtype"];
    place.refused(USAGE, &sizes, &words);
    let words = ["sampling_locations.bin", "8 bytes, expected 24 (12 elements of f16)"];
    place.refused(FAILED, &format!("{sizes} --queries 3"), &words);
    let words = ["value.bin", "16 bytes are not a whole number of images of 48 bytes", "--layout"];
    let odd = "--heads 1 --channels 6 --points 2 --dtype f16 --queries 1";
    place.refused(FAILED, odd, &words);
    std::fs::write(place.path("spatial_shapes.bin"), [1, 2, 3]).unwrap();
    place.refused(FAILED, &sizes, &["spatial_shapes.bin", "3 bytes are not pairs"]);
}

#[test]
fn truncated_files_are_refused_by_name() {
    for tensor in by_hand(F32, F32) {
        let place = Place::with_npy(&by_hand(F32, F32));
        let file = place.path(tensor.name).with_extension("npy");
        let bytes = std::fs::read(&file).unwrap();
        for cut in [0, 7, 30, bytes.len() - 1] {
            std::fs::write(&file, &bytes[..cut]).unwrap();
            place.refused(FAILED, "--backward", &[&format!("{}.npy", tensor.name)]);
        }
    }
    let place = Place::with_safetensors(&by_hand(F32, F32));
    let bytes = std::fs::read(&place.input).unwrap();
    for cut in [0, 7, 100, bytes.len() - 1] {
        std::fs::write(&place.input, &bytes[..cut]).unwrap();
        let words = ["call.safetensors", "not a readable safetensors file"];
        place.refused(FAILED, "", &words);
    }
}

#[test]
fn results_are_not_replaced_unasked_and_the_input_never() {
    let place = Place::with_safetensors(&by_hand(F32, F32));
    std::fs::write(place.path("call.output.safetensors"), b"mine").unwrap();
    place.refused(USAGE, "", &["call.output.safetensors", "exists", "--force"]);
    assert_eq!(std::fs::read(place.path("call.output.safetensors")).unwrap(), b"mine");
    place.ran("--force", &[]);

    let place = Place::with_npy(&by_hand(F32, F32));
    std::fs::write(place.path("grad_value.npy"), b"mine").unwrap();
    place.refused(USAGE, "--backward", &["grad_value.npy", "exists"]);
    place.ran("--backward --output deep/results", &[]);
    assert!(place.path("deep/results/grad_value.npy").is_file());
    assert_eq!(std::fs::read(place.path("grad_value.npy")).unwrap(), b"mine");
}

#[test]
fn a_failed_check_is_exit_code_1_says_why_and_writes_nothing() {
    // The sum is past the largest f16, and infinity is within no bound of a number.
    let value = [60000., 10., 60000., 20., 60000., 30., 60000., 40.];
    let tensors = with(by_hand(F16, F16), Tensor::floats("value", F16, &[1, 4, 1, 2], &value));
    let weights = Tensor::floats("attention_weights", F16, &[1, 1, 1, 1, 2], &[1.0, 1.0]);
    let place = Place::with_safetensors(&with(tensors, weights));
    let output = expect(place.run("--check"), 1, &["the check failed"]);
    let report = String::from_utf8(output.stdout).unwrap();
    let why = "1 not finite here or in the reference, but not alike";
    assert!(report.contains("FAIL    output") && report.contains(why), "{report}");
    assert_eq!(place.names(), ["call.safetensors"]);
    place.ran("", &[]);
}

#[test]
fn non_finite_inputs_are_counted_and_may_agree() {
    let value = [f64::NAN, 10., 2., 20., 3., 30., 4., 40.];
    let tensors = with(by_hand(F32, F32), Tensor::floats("value", F32, &[1, 4, 1, 2], &value));
    let place = Place::with_safetensors(&tensors);
    let words = [
        "note      value holds 1 NaN and 0 infinite of 8",
        "pass    output",
        "1 not finite here and in the reference alike: agreement",
    ];
    place.ran("--check", &words);
    let report = printed_json(place.run("--check --json --force"));
    assert_eq!(report["not_finite"][0]["tensor"], "value");
    assert_eq!(report["not_finite"][0]["nan"], 1);
    assert_eq!(report["passes"][0]["checks"][0]["not_finite_in_both"], 1);
}

#[test]
fn checking_the_reference_with_itself_is_refused() {
    let words = "compares with the reference, and the reference computes this call";
    let place = Place::with_safetensors(&by_hand(F64, F64));
    place.refused(USAGE, "--check", &[words, "nothing else computes f64"]);
}
