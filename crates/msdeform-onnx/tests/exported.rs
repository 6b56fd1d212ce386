//! Models that PyTorch's exporters wrote (`fixtures/export.py`): every package's spelling, by both exporters.

#![allow(clippy::unwrap_used, reason = "tests may fail")]

use std::path::Path;

use msdeform_onnx::{Form, Options, inspect, probes, rewrite};

const FIXTURES: [(&str, &[usize], usize); 8] = [
    ("half", &[3, 3, 3], 3),
    ("libreyolo", &[3, 1, 2], 3),
    ("lightly", &[3, 1, 2], 3),
    ("rfdetr_gather", &[3], 1),
    ("transformers", &[3, 3, 3], 3),
    ("point_lists", &[3, 1, 2], 3),
    ("ultralytics", &[3, 3, 3], 3),
    ("rfdetr", &[3], 1),
];

/// Packages that write gathers; the others write `GridSample`.
const GATHERED: [&str; 3] = ["libreyolo", "lightly", "rfdetr_gather"];

/// By both exporters.
fn both(package: &str) -> [(String, Vec<u8>); 2] {
    ["torchscript", "dynamo"].map(|exporter| {
        let name = format!("{package}_{exporter}.onnx");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(&name);
        (name, std::fs::read(path).unwrap())
    })
}

fn each(mut visit: impl FnMut(&str, &[u8], &[usize], usize)) {
    for (package, points, levels) in FIXTURES {
        for (name, bytes) in both(package) {
            visit(&name, &bytes, points, levels);
        }
    }
}

#[test]
fn levels_of_open_sizes_become_tensors_of_sizes_and_starts() {
    for (name, bytes) in both("open_levels") {
        let report = inspect(&bytes, Options::default()).unwrap();
        assert_eq!(report.left, [], "{name}");
        assert_eq!((report.sites.len(), &report.sites[0].levels), (1, &None), "{name}");
        assert!(report.sites[0].max_error.is_some_and(|error| error < 1e-9), "{name}");
        for to in [Form::MsDeform, Form::Mmdeploy, Form::TensorRt] {
            let result = rewrite(&bytes, to, Options::default()).unwrap();
            assert_eq!((result.rewritten.len(), result.left), (1, vec![]), "{name} {to}");
        }
    }
}

/// The levels' sizes are computed in the graph, and the search finds the site again without having them as constants.
#[test]
fn levels_of_open_sizes_become_standard_operators_and_one_node_again() {
    for (name, bytes) in both("open_levels") {
        let one_node = rewrite(&bytes, Form::MsDeform, Options::default()).unwrap().model.unwrap();
        for (from, given) in [("fixture", &bytes), ("one node", &one_node)] {
            for to in [Form::GridSample, Form::Gather] {
                let result = rewrite(given, to, Options::default()).unwrap();
                if from == "fixture" && to == Form::GridSample {
                    assert_eq!((result.kept.len(), result.left), (1, vec![]), "{name}");
                    continue;
                }
                assert_eq!(
                    (result.rewritten.len(), result.left),
                    (1, vec![]),
                    "{name} {from} {to}"
                );
                let checked = &result.rewritten[0];
                assert!(checked.max_error.is_some_and(|error| error < 1e-9), "{name} {from} {to}");
                let model = result.model.unwrap();
                let report = inspect(&model, Options::default()).unwrap();
                assert_eq!(report.left, [], "{name} {from} {to}");
                assert_eq!((report.sites[0].form, &report.sites[0].levels), (to, &None), "{name}");
                let back = rewrite(&model, Form::MsDeform, Options::default()).unwrap();
                assert_eq!((back.rewritten.len(), back.left), (1, vec![]), "{name} {from} {to}");
            }
        }
    }
}

#[test]
fn nearest_pixels_are_named_and_not_rewritten() {
    for (name, bytes) in both("discrete") {
        let result = rewrite(&bytes, Form::MsDeform, Options::default()).unwrap();
        assert_eq!((result.model, result.left.len()), (None, 1), "{name}");
        let reason = &result.left[0].reason;
        assert!(reason.contains("nearest pixel"), "{name}: {reason}");
    }
}

#[test]
fn every_spelling_is_recognised_with_its_sizes() {
    each(|name, bytes, points, levels| {
        let report = inspect(bytes, Options::default()).unwrap();
        assert_eq!(report.left, [], "{name}");
        assert_eq!(report.sites.len(), 1, "{name}");
        let site = &report.sites[0];
        let is_gathered = GATHERED.iter().any(|package| name.starts_with(package));
        let expected = if is_gathered { Form::Gather } else { Form::GridSample };
        assert_eq!(site.form, expected, "{name}");
        assert_eq!(site.points.as_deref(), Some(points), "{name}");
        assert_eq!(site.levels.as_ref().unwrap()[..], [[6, 4], [3, 2], [2, 1]][..levels], "{name}");
        assert_eq!((site.heads, site.channels), (Some(2), Some(4)), "{name}");
        assert_eq!((site.batch.as_str(), site.queries.as_str()), ("batch", "queries"), "{name}");
        assert!(site.max_error.is_some_and(|error| error < 1e-9), "{name}");
        assert_eq!(probes(bytes, Options::default()).unwrap().len(), 1, "{name}");
    });
}

#[test]
fn every_spelling_becomes_one_node_and_standard_operators_again() {
    each(|name, bytes, points, _| {
        for to in [Form::MsDeform, Form::Mmdeploy, Form::TensorRt] {
            let result = rewrite(bytes, to, Options::default()).unwrap();
            if to != Form::MsDeform && points.windows(2).any(|pair| pair[0] != pair[1]) {
                assert_eq!((result.left.len(), result.model), (1, None), "{name} {to}");
                continue;
            }
            assert_eq!(result.left, [], "{name} {to}");
            let model = result.model.unwrap();
            assert!(
                model.len() < bytes.len(),
                "{name} {to}: {} of {} bytes",
                model.len(),
                bytes.len()
            );
            let back = rewrite(&model, Form::GridSample, Options::default()).unwrap();
            assert!(back.rewritten[0].max_error.is_some_and(|error| error < 1e-9), "{name} {to}");
        }
    });
}

#[test]
fn every_spelling_becomes_gathers_and_back() {
    each(|name, bytes, points, levels| {
        let result = rewrite(bytes, Form::Gather, Options::default()).unwrap();
        assert_eq!(result.left, [], "{name}");
        let model = result.model.unwrap();
        let report = inspect(&model, Options::default()).unwrap();
        let site = &report.sites[0];
        assert_eq!((site.form, report.left.len()), (Form::Gather, 0), "{name}: {:?}", report.left);
        assert_eq!(site.points.as_deref(), Some(points), "{name}");
        assert_eq!(site.levels.as_ref().unwrap()[..], [[6, 4], [3, 2], [2, 1]][..levels], "{name}");
        assert!(site.max_error.is_some_and(|error| error < 1e-9), "{name}");
        let back = rewrite(&model, Form::GridSample, Options::default()).unwrap();
        assert_eq!(back.rewritten.len(), 1, "{name}");
    });
}
