//! What comes out, for every kind of file, format and layout.

use safetensors::Dtype::{BF16, F16, F32, F64, I32};

use super::{
    OUTPUT, Place, SIZES, Tensor, by_hand, decode, expect, printed_json, read_npy,
    read_safetensors, strings, with, without,
};

#[test]
fn a_safetensors_file_gives_one_beside_it() {
    for (value, sampling) in
        [(F32, F32), (F16, F16), (BF16, BF16), (F16, F32), (BF16, F32), (F32, F16), (F64, F64)]
    {
        let place = Place::with_safetensors(&by_hand(value, sampling));
        place.ran("", &["wrote     output"]);
        let output = place.path("call.output.safetensors");
        let expected = (vec![1, 1, 2], value, OUTPUT.to_vec());
        assert_eq!(read_safetensors(&output, "output"), expected, "{value:?} and {sampling:?}");
        assert_eq!(place.names(), ["call.output.safetensors", "call.safetensors"]);
    }
}

#[test]
fn a_folder_of_npy_files_gives_npy_files() {
    for (dtype, descr, options) in [
        (F32, "'<f4'", ""),
        (F16, "'<f2'", ""),
        (F64, "'<f8'", ""),
        (BF16, "'<V2'", "--dtype bf16"),
    ] {
        let place = Place::with_npy(&by_hand(dtype, dtype));
        place.ran(options, &[]);
        let (shape, found, bytes) = read_npy(&place.path("output.npy"));
        assert_eq!((shape, found.as_str()), (vec![1, 1, 2], descr));
        assert_eq!(decode(dtype, &bytes), OUTPUT);
    }
}

#[test]
fn raw_files_need_their_sizes_and_infer_batch_queries_and_levels() {
    for (value, sampling, more) in [
        (F32, F32, "--dtype f32"),
        (F64, F64, "--dtype f64"),
        (F16, F16, "--dtype f16 --queries 1"),
        (F16, F32, "--dtype f16 --queries 1"),
        (BF16, F32, "--dtype bf16 --sampling-dtype f32"),
        (BF16, BF16, "--dtype bf16 --sampling-dtype bf16 --batch 1"),
    ] {
        let place = Place::with_bin(&by_hand(value, sampling));
        place.ran(&format!("{SIZES} {more}"), &[]);
        assert_eq!(place.bin_output(value), OUTPUT, "{value:?} and {sampling:?}");
    }
}

#[test]
fn the_output_may_be_single_beside_half_values() {
    let place = Place::with_npy(&by_hand(F16, F32));
    place.ran("--output-dtype f32 --check", &[]);
    let (shape, found, bytes) = read_npy(&place.path("output.npy"));
    assert_eq!((shape, found.as_str()), (vec![1, 1, 2], "'<f4'"));
    assert_eq!(decode(F32, &bytes), OUTPUT);
}

#[test]
fn raw_level_sizes_may_be_i32_or_options() {
    let sizes = format!("{SIZES} --dtype f32");
    let narrow = |name, shape: &[usize], numbers: &[i32]| {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor { name, dtype: I32, shape: shape.to_vec(), bytes }
    };
    let levels = with(by_hand(F32, F32), narrow("spatial_shapes", &[1, 2], &[2, 2]));
    let narrow = with(levels, narrow("level_start_index", &[1], &[0]));
    let place = Place::with_bin(&narrow);
    place.ran(&sizes, &[]);
    assert_eq!(place.bin_output(F32), OUTPUT);

    let bare = without(without(by_hand(F32, F32), "spatial_shapes"), "level_start_index");
    let place = Place::with_bin(&bare);
    place.ran(&format!("{sizes} --levels 2x2"), &[]);
    assert_eq!(place.bin_output(F32), OUTPUT);
}

/// The seed documents' arrangement: planes of N * M, a zero border around each level.
fn padded(shape: &[usize]) -> Tensor {
    let mut values = vec![0.0; 16 * 2];
    for (pixel, place) in [(1.0, 5), (2.0, 6), (3.0, 9), (4.0, 10)] {
        values[2 * place] = pixel;
        values[2 * place + 1] = 10.0 * pixel;
    }
    Tensor::floats("value", F32, shape, &values)
}

#[test]
fn the_layout_is_found_by_the_shape_or_said_for_raw_files() {
    let flat = [1., 10., 2., 20., 3., 30., 4., 40.];
    for (value, layout) in [
        (Tensor::floats("value", F32, &[1, 4, 1, 2], &flat), "interleaved"),
        (Tensor::floats("value", F32, &[1, 1, 4, 2], &flat), "head_major"),
        (Tensor::floats("value", F32, &[1, 4, 2], &flat), "head_major"),
        (padded(&[1, 1, 16, 2]), "head_major_padded"),
        (padded(&[1, 16, 2]), "head_major_padded"),
    ] {
        let place = Place::with_safetensors(&with(by_hand(F32, F32), value));
        place.ran("", &[&format!(" {layout}\n")]);
        let (_, _, found) = place.result("output");
        assert_eq!(found, OUTPUT, "{layout}");
    }
    let place = Place::with_bin(&with(by_hand(F32, F32), padded(&[1, 16, 2])));
    place.ran(&format!("--layout head_major_padded {SIZES} --dtype f32"), &[]);
    assert_eq!(place.bin_output(F32), OUTPUT);
}

#[test]
fn gaps_are_believed_of_level_start_index() {
    let value = [0., 0., 1., 10., 2., 20., 3., 30., 4., 40., 0., 0.];
    let gapped = with(by_hand(F32, F32), Tensor::floats("value", F32, &[1, 6, 1, 2], &value));
    let started = with(gapped.clone(), Tensor::integers("level_start_index", &[1], &[1]));
    let place = Place::with_safetensors(&started);
    place.ran("--check", &[]);
    let (_, _, found) = place.result("output");
    assert_eq!(found, OUTPUT);
    let place = Place::with_safetensors(&without(gapped, "level_start_index"));
    let refused = "shape [1, 6, 1, 2], expected [1, 4, 1, D] (interleaved)";
    expect(place.run(""), 3, &[refused]);
}

#[test]
fn levels_may_have_different_numbers_of_points() {
    let locations = [0.25, 0.25, 0.5, 0.5, 0.5, 0.5];
    // Level 0 as by hand with its two points, level 1 a single pixel of 8 and 80 with one point.
    let tensors = vec![
        Tensor::floats("value", F32, &[1, 5, 1, 2], &[1., 10., 2., 20., 3., 30., 4., 40., 8., 80.]),
        Tensor::integers("spatial_shapes", &[2, 2], &[2, 2, 1, 1]),
        Tensor::floats("sampling_locations", F32, &[1, 1, 1, 3, 2], &locations),
        Tensor::floats("attention_weights", F32, &[1, 1, 1, 3], &[0.25, 0.75, 0.5]),
    ];
    let place = Place::with_safetensors(&tensors);
    expect(place.run(""), 2, &["--points"]);
    place.ran("--points 2,1", &[]);
    let (_, _, found) = place.result("output");
    assert_eq!(found, [OUTPUT[0] + 4.0, OUTPUT[1] + 40.0]);
}

#[test]
fn gradients_have_the_shapes_of_their_tensors() {
    let place = Place::with_safetensors(&by_hand(F32, F32));
    place.ran("--backward --check", &[]);
    let read = |name: &str| place.result(name);
    assert_eq!(read("output").2, OUTPUT);
    // Upstream 2 and 1; the first point falls on pixel 0 alone, the second on all four by quarters.
    let (shape, _, value) = read("grad_value");
    assert_eq!(shape, [1, 4, 1, 2]);
    let middle = 0.75 * 0.25;
    let expected = [0.25 + middle, middle, middle, middle].map(|share| [2.0 * share, share]);
    assert_eq!(value, expected.concat());
    // 2 * pixel + 1 * (10 * pixel) = 12 * pixel.
    let (shape, _, weights) = read("grad_attention_weights");
    assert_eq!((shape, weights), (vec![1, 1, 1, 1, 2], vec![12.0, 12.0 * 2.5]));
    // Slopes of the pixels: 1 in x, 2 in y; a location moves the pixel by the level's size of 2.
    let (shape, _, locations) = read("grad_sampling_locations");
    assert_eq!(shape, [1, 1, 1, 1, 2, 2]);
    let slopes = [0.25 * 1.0, 0.25 * 2.0, 0.75 * 1.0, 0.75 * 2.0];
    assert_eq!(locations, slopes.map(|slope| 12.0 * slope * 2.0));
}

#[test]
fn an_unused_gradient_is_mentioned() {
    let place = Place::with_npy(&by_hand(F32, F32));
    place.ran("", &["--backward"]);
    place.ran("--backward --force", &[]);
    let names = place.names();
    for name in ["grad_value.npy", "grad_sampling_locations.npy", "grad_attention_weights.npy"] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
}

#[test]
fn every_variant_can_be_asked_for_and_the_reference_too() {
    let place = Place::with_safetensors(&by_hand(F32, F32));
    for (variant, options) in
        [("fwd_cpu_scalar", ""), ("bwd_cpu_scalar", "--backward --threads 1"), ("reference", "")]
    {
        place.ran(&format!("--force --variant {variant} {options}"), &[variant]);
        let (_, _, found) = place.result("output");
        assert_eq!(found, OUTPUT);
    }
}

#[test]
fn the_report_for_scripts_has_every_figure() {
    let place = Place::with_safetensors(&by_hand(F16, F32));
    let report = printed_json(place.run("--backward --check --json"));
    assert_eq!(report["passed"], true);
    assert_eq!(report["problem"], "N=1 M=1 D=2 Lq=1 (2x2) P=2 f16+f32 interleaved");
    let passes = report["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 2);
    assert!(passes[0]["time_us"].as_f64().unwrap() > 0.0);
    let check = &passes[0]["checks"][0];
    assert_eq!((&check["tensor"], &check["pass"]), (&"output".into(), &true.into()));
    assert_eq!(check["elements"], 2);
    for figure in ["max_abs", "max_rel", "rel_l2", "bound"] {
        assert!(check[figure].is_number(), "{figure}: {check}");
    }
    let all = ["output", "grad_value", "grad_sampling_locations", "grad_attention_weights"];
    assert_eq!(strings(&report["written"], "tensor"), all);
}

#[test]
fn a_call_without_queries_gives_an_empty_output() {
    let empty = |name, shape: &[usize]| Tensor::floats(name, F32, shape, &[]);
    let tensors = with(by_hand(F32, F32), empty("sampling_locations", &[1, 0, 1, 1, 2, 2]));
    let tensors = with(tensors, empty("attention_weights", &[1, 0, 1, 1, 2]));
    let place = Place::with_safetensors(&tensors);
    place.ran("--check", &[]);
    let (shape, dtype, values) = place.result("output");
    assert_eq!((shape, dtype, values), (vec![1, 0, 2], F32, vec![]));
}

#[test]
fn the_example_of_the_readme_passes_its_check() {
    let example =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/tiny_decoder.safetensors");
    let place = Place::new(example);
    place.ran("--backward --check --output tiny.safetensors", &[]);
    assert_eq!(read_safetensors(&place.path("tiny.safetensors"), "output").0, [1, 3, 8]);
}
