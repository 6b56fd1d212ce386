use super::*;

const RECORD: &str = r#"{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
        "environment": {"gpu": "G", "torch": "2.11", "transformers": "5"},
        "tests": {"passed": 70, "failed": 0, "skipped": 1},
        "host_cost": [{"device": "cuda", "add_us": 7, "inference_us": 9.87, "forward_with_gradients_us": 20,
            "forward_and_backward_us": 60, "mul_of_3_forward_with_gradients_us": 16.66,
            "mul_of_3_forward_and_backward_us": 59, "from_offsets_inference_us": 10,
            "from_offsets_forward_with_gradients_us": 21, "from_offsets_forward_and_backward_us": 61,
            "mul_of_4_forward_with_gradients_us": 22, "mul_of_4_forward_and_backward_us": 70}],
        "models": [{"model": "DETR", "package": "transformers", "mode": "eager", "images": 2, "height": 800,
            "width": 1066, "pass": "training", "dtype": "bf16", "output_error": 0.00012, "before": {"median_ms": 100, "peak_mib": 2000.4},
            "after": {"median_ms": 50, "peak_mib": 1000}}]}"#;

#[test]
fn the_tables_name_the_record_and_have_its_figures() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("gpu/a-python");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(runs::FILE), RECORD).unwrap();
    let tables = readme_tables(root.path(), &["gpu/a-python".to_owned()]).unwrap();
    assert!(tables.starts_with("G, torch 2.11"), "{tables}");
    assert!(tables.contains("`records/gpu/a-python`"), "{tables}");
    let line = "| eager | - | - | 100.0 -> 50.0 ms | 2.00x | 2000 -> 1000 MiB | 1e-4 |";
    assert!(tables.contains(line), "{tables}");
    let line = "| cuda | plain | 9.9 | 7.0 | 20.0 | 16.7 | 60.0 | 59.0 |\n\
                | cuda | fused | 10.0 | 7.0 | 21.0 | 22.0 | 61.0 | 70.0 |\n";
    assert!(tables.contains(line), "{tables}");
}

#[test]
fn a_broken_record_is_an_error() {
    assert!(serde_json::from_str::<PythonRecord>("{}").is_err());
}

#[test]
fn a_run_that_broke_off_shows_what_it_has() {
    let whole: Value = serde_json::from_str(RECORD).unwrap();
    let mut part = whole.clone();
    part["models"][0]["output_error"] = Value::Null;
    part["tests"]["broke_off"] = "not done after 80 s".into();
    let text = tables(&alone(serde_json::from_value(part).unwrap()));
    assert!(
        text.contains("1 skipped (not done after 80 s).") && text.contains("-> 1000 MiB | - |"),
        "{text}"
    );
    let mut little = whole;
    for key in ["tests", "host_cost", "models"] {
        little.as_object_mut().unwrap().remove(key);
    }
    let text = tables(&alone(serde_json::from_value(little).unwrap()));
    assert!(!text.contains("GPU tests") && !text.contains("`add`"), "{text}");
}

fn alone(record: PythonRecord) -> Usual {
    Usual { folders: vec!["f".into()], record }
}

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

#[test]
fn the_readme_has_a_line_for_each_model_and_the_page_every_row() {
    let usual = alone(serde_json::from_str(NEW).unwrap());
    let readme = tables(&usual);
    let start = "P, torch 2.15, transformers 5, rfdetr 1.11, from `records/f`.";
    assert!(readme.starts_with(start), "{readme}");
    let line = "| A | rfdetr | 1 x 32 x 64 | eager | 100.0 -> 50.0 ms | 2.00x | 300.0 -> 100.0 ms | 3.00x | - | 1e-7 |\n";
    assert!(readme.contains(line) && readme.matches("| A |").count() == 1, "{readme}");
    let page = every_row("f", &usual.record);
    let line =
        "| inference | f32 | 100.0 ms | 50.0 ms | 2.00x | 20 MiB | 10 MiB | - | 7 | 1e-7 |\n";
    assert!(page.contains(line) && page.contains("left out: before: a / b |"), "{page}");
    assert_eq!(page.matches("| A |").count(), 3);
}

#[test]
fn models_of_another_record_are_added_where_they_are_new_and_usual() {
    let other = |model: &str, dtype: &str| -> PythonRecord {
        let mut other: Value = serde_json::from_str(NEW).unwrap();
        other["environment"]["ultralytics"] = "8.4".into();
        other["environment"]["mmcv-lite"] = "2.1".into();
        other["environment"]["transformers"] = "6".into();
        other["models"][0]["model"] = model.into();
        other["models"][0]["dtype"] = dtype.into();
        other["models"].as_array_mut().unwrap().truncate(1);
        serde_json::from_value(other).unwrap()
    };
    let mut elsewhere = other("C", "f32");
    elsewhere.environment.insert("cpu".into(), "Q".into());
    let usual = alone(serde_json::from_str(NEW).unwrap())
        .with(("elsewhere".into(), elsewhere))
        .with(("same".into(), other("A", "f32")))
        .with(("half".into(), other("B", "f16")))
        .with(("new".into(), other("B", "f32")));
    let readme = tables(&usual);
    assert!(
        readme.contains(
            "transformers 5, ultralytics 8.4, rfdetr 1.11, mmcv-lite 2.1, from `records/f` and `records/new`."
        ),
        "{readme}"
    );
    assert_eq!((readme.matches("| A |").count(), readme.matches("| B |").count()), (1, 1));
    assert_eq!(
        (usual.record.title("B"), usual.record.names()),
        ("B, rfdetr".into(), vec!["A", "B"])
    );
}

#[test]
fn graphs_stand_beside_eager_models_and_in_the_picture() {
    let mut record: Value = serde_json::from_str(NEW).unwrap();
    let mut graph = record["models"][0].clone();
    graph["mode"] = GRAPH.into();
    graph["before"]["median_ms"] = 80.0.into();
    let rows = record["models"].as_array_mut().unwrap();
    rows.push(graph);
    // One that cannot be captured.
    let mut eager = rows[0].clone();
    eager["model"] = "B".into();
    let mut reason = rows[2].clone();
    reason["model"] = "B".into();
    reason["mode"] = GRAPH.into();
    rows.extend([eager, reason]);
    let usual = alone(serde_json::from_value(record).unwrap());
    let readme = tables(&usual);
    assert!(
        readme.contains("| graph | 80.0 -> 50.0 ms | 1.60x | - | - | - | 1e-7 |\n"),
        "{readme}"
    );
    assert_eq!((readme.matches("| A |").count(), readme.matches("| B |").count()), (2, 1));
    assert_eq!(usual.record.usual_mode(), GRAPH);
    let shown = usual.record.speeds();
    let speedups = [Some(Speed::Times(1.6)), None];
    assert_eq!(shown, [ModelSpeed { name: "A, rfdetr".into(), speedups }]);
}

#[test]
fn a_ratio_that_neighbouring_passes_do_not_bear_out_is_noise() {
    let mut record: Value = serde_json::from_str(NEW).unwrap();
    let row = &mut record["models"][0];
    row["before"]["samples_ms"] = serde_json::json!([100, 99, 101, 100, 100, 100]);
    row["after"]["samples_ms"] = serde_json::json!([50, 50, 120, 40, 50, 130]);
    // As older records say: what is in the table has to agree with its times.
    row["speedup"] = 1.9.into();
    let usual = alone(serde_json::from_value(record).unwrap());
    let line = "| eager | 100.0 -> 50.0 ms | within noise | 300.0 -> 100.0 ms | 3.00x |";
    assert!(tables(&usual).contains(line), "{}", tables(&usual));
    let line = "| 100.0 ms | 50.0 ms | within noise | 20 MiB |";
    assert!(every_row("f", &usual.record).contains(line));
    assert_eq!(usual.record.speeds()[0].speedups[0], Some(Speed::Noise));
}

#[test]
fn a_record_with_the_plain_operator_shows_three_ways_and_why_one_is_missing() {
    let mut record: Value = serde_json::from_str(NEW).unwrap();
    let rows = &mut record["models"];
    rows[0]["plain"] = serde_json::json!({"median_ms": 60, "peak_mib": 15, "kernels": 9});
    // As a graph that cannot be captured without the patch.
    let second = rows[1].as_object_mut().unwrap();
    second.remove("before");
    second.insert("before_left_out".into(), "x.py:3: a < b".into());
    let page = every_row("f", &serde_json::from_value(record).unwrap());
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
