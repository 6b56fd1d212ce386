//! What the committed records do not have; the documents are compared with those elsewhere.

use minijinja::context;
use minijinja::value::Serde;

use super::*;
use crate::render::render;

const NEW: &str = r#"{"schema": 1, "commit": "0123456789",
        "environment": {"cpu": "P", "torch": "2.15", "transformers": "5", "rfdetr": "1.11"},
        "models": [
            {"model": "A", "package": "rfdetr", "mode": "eager", "images": 1, "height": 32, "width": 64,
             "pass": "inference", "dtype": "f32", "output_error": 1e-7,
             "before": {"median_ms": 100, "peak_mib": 20, "kernels": null},
             "after": {"median_ms": 50, "peak_mib": 10, "kernels": 7}},
            {"model": "A", "package": "rfdetr", "mode": "eager", "images": 1, "height": 32, "width": 64,
             "pass": "training", "dtype": "f32", "output_error": 1e-7,
             "before": {"median_ms": 300, "peak_mib": 200}, "after": {"median_ms": 100, "peak_mib": null}},
            {"model": "A", "package": "rfdetr", "mode": "compiled", "images": 1, "height": 32, "width": 64,
             "pass": "inference", "dtype": "f32", "left_out": "before: a | b", "is_fault": false}]}"#;

fn record() -> Value {
    serde_json::from_str(NEW).unwrap()
}

/// The tables of the README and every row.
fn texts(records: &[Value]) -> String {
    let (python, usual) = (Serde(records), Serde(usual(records)));
    let values = context! { python, usual, packages => PACKAGES.to_vec() };
    ["python-readme.txt", "figures.txt"]
        .map(|name| render(name, values.clone()).unwrap())
        .join("\n")
}

#[test]
fn a_run_that_broke_off_shows_what_it_has() {
    let mut part = record();
    part["models"][0]["output_error"] = Value::Null;
    part["tests"] =
        json!({"passed": 70, "failed": 0, "skipped": 1, "broke_off": "not done after 80 s"});
    let mut nothing = part.clone();
    (nothing["tests"], nothing["models"]) = (Value::Null, json!([]));
    let [part, nothing] = [part, nothing].map(|record| texts(&[shown(record, "f")]));
    insta::assert_snapshot!(format!("{part}{nothing}{}", texts(&[])));
}

#[test]
fn models_of_another_record_are_added_where_they_are_new_and_usual() {
    let other = |folder: &str, device: &str, model: &str, dtype: &str| {
        let mut other = record();
        let versions =
            json!({"cpu": device, "ultralytics": "8.4", "mmcv-lite": "2.1", "transformers": "6"});
        other["environment"] = versions;
        other["models"][0]["model"] = model.into();
        other["models"][0]["dtype"] = dtype.into();
        other["models"].as_array_mut().unwrap().truncate(1);
        shown(other, folder)
    };
    let records = [
        shown(record(), "f"),
        other("elsewhere", "Q", "C", "f32"),
        other("same", "P", "A", "f32"),
        other("half", "P", "B", "f16"),
        other("new", "P", "B", "f32"),
    ];
    let usual = usual(&records).unwrap();
    assert_eq!(usual["folders"], json!(["f", "new"]));
    let names = distinct(models(&usual).map(|row| &row["model"]));
    assert_eq!((names, models(&usual).count()), (vec![&json!("A"), &json!("B")], 4));
    let text = texts(&records);
    let line = "P, torch 2.15, transformers 5, ultralytics 8.4, rfdetr 1.11, mmcv-lite 2.1, from `records/f` and `records/new`.";
    assert!(text.contains(line), "{text}");
    assert!(picture(&usual).lines.iter().map(|line| &*line.name).eq(["A, rfdetr", "B, rfdetr"]));
}

#[test]
fn a_record_with_the_plain_operator_shows_three_ways_and_why_one_is_missing() {
    let mut record = record();
    let rows = &mut record["models"];
    rows[0]["plain"] = json!({"median_ms": 60, "peak_mib": 15, "kernels": 9});
    // As a graph that cannot be captured without the patch.
    let second = rows[1].as_object_mut().unwrap();
    second.remove("before");
    second.insert("before_left_out".into(), "x.py:3: a < b".into());
    let page = texts(&[shown(record, "f")]);
    insta::assert_snapshot!(page);
    // A table has as many cells in every line.
    let (_, table) = page.split_once("## P").unwrap();
    let lines = table.lines().filter(|line| line.starts_with('|'));
    let bars: Vec<usize> = lines.map(|line| line.matches('|').count()).collect();
    assert_eq!(bars, [bars[0]; 5], "{page}");
}
