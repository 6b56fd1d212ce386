//! What the committed records do not have; the documents are compared with those elsewhere.

use serde_json::json;

use super::*;

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

fn parsed(record: Value, folder: &str) -> PythonRecord {
    let record: PythonRecord = serde_json::from_value(record).unwrap();
    PythonRecord { folders: vec![folder.into()], ..record }
}

#[test]
fn a_run_that_broke_off_shows_what_it_has() {
    let mut part = record();
    part["models"][0]["output_error"] = Value::Null;
    part["tests"] =
        json!({"passed": 70, "failed": 0, "skipped": 1, "broke_off": "not done after 80 s"});
    let text = parsed(part.clone(), "f").as_readme().to_string();
    assert!(
        text.contains("1 skipped (not done after 80 s).") && text.contains("| - | - |"),
        "{text}"
    );
    part["tests"] = Value::Null;
    part["models"] = json!([]);
    let text = parsed(part, "f").as_readme().to_string();
    assert!(!text.contains("GPU tests") && !text.contains("`add`"), "{text}");
}

#[test]
fn models_of_another_record_are_added_where_they_are_new_and_usual() {
    let other = |folder: &str, model: &str, dtype: &str| {
        let mut other = record();
        other["environment"]["ultralytics"] = "8.4".into();
        other["environment"]["mmcv-lite"] = "2.1".into();
        other["environment"]["transformers"] = "6".into();
        other["models"][0]["model"] = model.into();
        other["models"][0]["dtype"] = dtype.into();
        other["models"].as_array_mut().unwrap().truncate(1);
        parsed(other, folder)
    };
    let mut elsewhere = other("elsewhere", "C", "f32");
    elsewhere.environment.insert("cpu".into(), "Q".into());
    let usual = parsed(record(), "f")
        .with(elsewhere)
        .with(other("same", "A", "f32"))
        .with(other("half", "B", "f16"))
        .with(other("new", "B", "f32"));
    let readme = usual.as_readme().to_string();
    assert!(
        readme.contains(
            "transformers 5, ultralytics 8.4, rfdetr 1.11, mmcv-lite 2.1, from `records/f` and `records/new`."
        ),
        "{readme}"
    );
    assert_eq!((readme.matches("| A |").count(), readme.matches("| B |").count()), (1, 1));
    assert_eq!((usual.title("B"), usual.names()), ("B, rfdetr".into(), vec!["A", "B"]));
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
    let page = parsed(record, "f").as_figures().to_string();
    let head = "| dtype | before | plain | after | speed-up | by fusing | memory before | plain | after | \
                kernels before | plain | after | error |\n";
    assert!(page.contains(head), "{page}");
    let line = "| f32 | 100.0 ms | 60.0 ms | 50.0 ms | 2.00x | 1.20x | 20 MiB | 15 MiB | 10 MiB | - | 9 | 7 | 1e-7 |\n";
    assert!(page.contains(line), "{page}");
    let line = "| training | f32 | - | - | 100.0 ms | - | - | - | - | - | - | - | - | 1e-7 |\n";
    assert!(page.contains(line), "{page}");
    assert!(page.ends_with("\n- A, eager, training, f32, before: x.py:3: a &lt; b\n"), "{page}");
    // A table has as many cells in every line.
    let lines = page.lines().filter(|line| line.starts_with('|'));
    let bars: Vec<usize> = lines.map(|line| line.matches('|').count()).collect();
    assert_eq!(bars, [bars[0]; 5], "{page}");
}
