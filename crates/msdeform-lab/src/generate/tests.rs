use msdeform::{FROM_OFFSETS, reference};

use super::*;
use crate::workload::{self, Sizes, Tag};

fn inputs(name: &str, dtype: DType, layout: ValueLayout, locations: Locations) -> HostTensors {
    let workload = workload::find(name).unwrap();
    let problem =
        workload.problem(dtype, layout, Sizes { batch: Some(1), ..Sizes::default() }).unwrap();
    HostTensors::generate(&problem, &Draw::standard(workload, &problem, locations))
}

fn digest(tensors: &HostTensors) -> String {
    let mut hasher = blake3::Hasher::new();
    for (_, buffer) in tensors.iter() {
        hasher.update(buffer.bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Every published figure rests on these bytes: a change here makes old records incomparable.
#[test]
fn the_bytes_are_the_published_bytes() {
    use Locations::{Hostile, Local, OnePlace, Outside, Uniform};
    use ValueLayout::{HeadMajor, HeadMajorPadded, Interleaved};
    let cases = [
        ("ddetr_dec", DType::F32, Interleaved, Local),
        ("ddetr_dec", DType::F16, Interleaved, Uniform),
        ("rtdetr_dec", DType::Bf16, Interleaved, Local),
        ("bevformer_tsa", DType::F16, Interleaved, Local),
        ("edge_point_lists", DType::F32, HeadMajorPadded, Local),
        ("edge_channels_33", DType::F32, HeadMajor, Uniform),
        ("edge_outside", DType::F32, Interleaved, Outside),
        ("edge_hostile", DType::F32, Interleaved, Hostile),
        ("edge_one_place", DType::F32, Interleaved, OnePlace),
    ];
    let digests: Vec<String> = cases
        .iter()
        .map(|&(name, dtype, layout, locations)| {
            let hash = digest(&inputs(name, dtype, layout, locations));
            format!("{name} {dtype} {layout} {locations} {hash}")
        })
        .collect();
    insta::assert_snapshot!(digests.join("\n"));
}

#[test]
fn another_seed_gives_other_numbers() {
    let workload = workload::find("edge_one_point").unwrap();
    let problem = workload.problem(DType::F32, ValueLayout::Interleaved, Sizes::default()).unwrap();
    let draw = Draw::standard(workload, &problem, Locations::Uniform);
    let first = HostTensors::generate(&problem, &draw);
    assert_eq!(first, HostTensors::generate(&problem, &draw));
    let second = HostTensors::generate(&problem, &Draw { seed: 1, ..draw });
    assert_ne!(first[Role::Value], second[Role::Value]);
    assert_ne!(first[Role::Locations], second[Role::Locations]);
}

#[test]
fn every_layout_holds_the_same_problem() {
    for workload in workload::by_tag(Tag::Edge) {
        let locations = workload.locations[0];
        let outputs: Vec<Vec<f64>> = workload
            .layouts
            .iter()
            .map(|&layout| {
                let problem = workload.problem(DType::F16, layout, Sizes::default()).unwrap();
                let draw = Draw::standard(workload, &problem, locations);
                let tensors = HostTensors::generate(&problem, &draw);
                reference::forward(
                    &problem,
                    &tensors[Role::Value].to_f64(),
                    &tensors[Role::Locations].to_f64(),
                    &tensors[Role::Weights].to_f64(),
                )
            })
            .collect();
        for other in &outputs[1..] {
            assert_eq!(&outputs[0], other, "{}", workload.name);
        }
    }
}

#[test]
fn a_part_of_the_queries_sees_what_it_sees_in_the_whole() {
    let workload = workload::find("edge_point_lists").unwrap();
    let layout = ValueLayout::Interleaved;
    let whole = workload.problem(DType::F32, layout, Sizes::default()).unwrap();
    let draw = Draw::standard(workload, &whole, Locations::Local);
    let all = HostTensors::generate(&whole, &draw);
    let picked = 10;
    let part = whole.to_builder().queries(picked).build().unwrap();
    let some = HostTensors::generate(&part, &draw);
    let (all, some) = (all[Role::Locations].to_f64(), some[Role::Locations].to_f64());
    let row_len = whole.heads() * whole.samples() * 2;
    for batch in 0..whole.batch() {
        for index in 0..picked {
            let query = index * whole.queries() / picked;
            assert_eq!(
                some[(batch * picked + index) * row_len..][..row_len],
                all[(batch * whole.queries() + query) * row_len..][..row_len]
            );
        }
    }
}

#[test]
fn weights_are_a_softmax_and_padding_is_zero() {
    let tensors =
        inputs("edge_point_lists", DType::F32, ValueLayout::HeadMajorPadded, Locations::Uniform);
    for row in tensors[Role::Weights].to_f64().chunks(14) {
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert!(row.iter().all(|weight| *weight > 0.0));
    }
    let value = tensors[Role::Value].to_f64();
    let border = &value[..22 * 32];
    assert!(border.iter().all(|x| *x == 0.0), "the first padded row is a border");
    assert!(value[22 * 32 + 32] != 0.0, "the first pixel is not");
}

#[test]
fn local_locations_stay_near_their_pixel_and_uniform_ones_do_not() {
    let spread = |locations| {
        let tensors = inputs("bevformer_tsa", DType::F32, ValueLayout::Interleaved, locations);
        let locations = tensors[Role::Locations].to_f64();
        // Samples of a query: 8 heads x 4 points; the mean distance from the pixel, in pixels.
        let queries = 40_000;
        let distance: f64 = (0..queries)
            .flat_map(|query| (0..32).map(move |sample| (query, sample)))
            .map(|(query, sample)| {
                let x = locations[(query * 32 + sample) * 2] * 200.0 - 0.5;
                (x - (query % 200) as f64).abs()
            })
            .sum();
        distance / (queries as f64 * 32.0)
    };
    assert!(spread(Locations::Local) < 3.0);
    assert!(spread(Locations::Uniform) > 50.0);
}

#[test]
fn head_zero_reaches_to_the_right() {
    // Direction 0 is +x: the mean offset of point p is 0.75 (p + 1) pixels.
    let tensors = inputs("seed", DType::F32, ValueLayout::HeadMajor, Locations::Local);
    let locations = tensors[Role::Locations].to_f64();
    let (queries, samples, columns, width) = (15_422, 32, 160.0, 160.0);
    for point in [0, 7] {
        let mean: f64 = (0..queries)
            .map(|query| {
                let reference = ((query % 160) as f64 + 0.5) / columns;
                (locations[(query * samples + point) * 2] - reference) * width
            })
            .sum::<f64>()
            / queries as f64;
        let expected = 0.75 * (point as f64 + 1.0);
        assert!((mean - expected).abs() < 0.05, "point {point}: {mean} against {expected}");
    }
}

#[test]
fn outside_means_outside_at_every_level_size() {
    let tensors = inputs("edge_outside", DType::F16, ValueLayout::Interleaved, Locations::Outside);
    let outside = |x: f64| !(-0.5..=1.5).contains(&x);
    assert!(tensors[Role::Locations].to_f64().chunks(2).all(|xy| outside(xy[0]) || outside(xy[1])));
}

#[test]
fn one_place_lies_between_the_same_pixels_in_every_format() {
    let cells = |dtype: DType| {
        let tensors =
            inputs("edge_one_place", dtype, ValueLayout::Interleaved, Locations::OnePlace);
        let cell = |xy: &[f64]| ((xy[0] * 167.0 - 0.5) as usize, (xy[1] * 100.0 - 0.5) as usize);
        tensors[Role::Locations]
            .to_f64()
            .chunks(2)
            .map(cell)
            .collect::<std::collections::HashSet<_>>()
    };
    for dtype in DType::FAST {
        assert_eq!(cells(dtype), [(67, 39)].into(), "{dtype}");
    }
}

/// Every kind of references that a workload can have.
#[test]
fn offsets_lead_to_the_samples_that_locations_are() {
    for name in ["ddetr_dec", "dino_dec", "rtdetr_dec", "bevformer_sca", "edge_point_lists"] {
        let workload = workload::find(name).unwrap();
        let sizes = Sizes { batch: Some(2), queries: Some(20) };
        let layout = ValueLayout::Interleaved;
        let given = workload.problem(DType::F32, layout, sizes).unwrap();
        let follows = workload.problem_of(&FROM_OFFSETS, DType::F32, layout, sizes).unwrap();
        let draw = Draw::standard(workload, &given, Locations::Local);
        let numbers = |problem| HostTensors::generate(problem, &draw).widened();
        let (expected, found) = (numbers(&given), numbers(&follows));
        let samples = reference::samples_of(&follows, |role| found.get(role));
        let close = |a: &[f64], b: &[f64], bound: f64| {
            assert_eq!(a.len(), b.len(), "{name}");
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < bound, "{name}: {worst}");
        };
        close(&samples.locations, expected.get(Role::Locations), 1e-6);
        close(&samples.weights, expected.get(Role::Weights), 1e-6);
        assert_eq!(found.get(Role::Value), expected.get(Role::Value));
        assert_eq!(found.get(Role::GradOutput), expected.get(Role::GradOutput));
        assert!(found.get(Role::Locations).is_empty());
    }
}
