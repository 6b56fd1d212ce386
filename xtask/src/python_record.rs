//! The tables of the Python package's README, from a record of `benches/record.py`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const BEGIN: &str = "<!-- records:python:begin -->";
const END: &str = "<!-- records:python:end -->";
const SCHEMA: u32 = 1;

#[derive(Debug, Deserialize)]
struct PythonRecord {
    schema: u32,
    commit: String,
    environment: Environment,
    // A run that broke off leaves parts out.
    tests: Option<Tests>,
    #[serde(default)]
    host_cost: Vec<HostCost>,
    #[serde(default)]
    models: Vec<ModelRow>,
}

#[derive(Debug, Deserialize)]
struct Environment {
    gpu: String,
    torch: String,
    transformers: String,
}

#[derive(Debug, Deserialize)]
struct Tests {
    passed: usize,
    failed: usize,
    skipped: usize,
    broke_off: Option<String>,
}

#[derive(Debug, Deserialize)]
struct HostCost {
    device: String,
    inference_us: f64,
    forward_with_gradients_us: f64,
    gradient_us: Option<f64>,
    forward_and_backward_us: f64,
    add_us: f64,
    mul_forward_and_backward_us: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct ModelRow {
    model: String,
    images: usize,
    height: usize,
    width: usize,
    pass: String,
    dtype: String,
    /// Nothing where it is not finite.
    output_error: Option<f64>,
    before: Side,
    after: Side,
}

#[derive(Debug, Deserialize)]
struct Side {
    median_ms: f64,
    peak_mib: f64,
}

/// Replaces what stands between the markers by what a record says, named by its folder under `root`.
pub fn splice(readme: &str, root: &Path, record: Option<&str>) -> Result<String> {
    let from = readme.find(BEGIN).context("no marker where the tables begin")? + BEGIN.len();
    let to = readme.find(END).context("no marker where the tables end")?;
    ensure!(from <= to && readme.matches(BEGIN).count() == 1, "the markers are out of order");
    let table = match record {
        Some(folder) => {
            let file = root.join(folder).join("python.json");
            tables(folder, &read(&file).with_context(|| file.display().to_string())?)
        }
        None => "Nothing has been measured yet.\n".to_owned(),
    };
    Ok(format!("{}\n{table}{}", &readme[..from], &readme[to..]))
}

fn read(file: &Path) -> Result<PythonRecord> {
    let record: PythonRecord = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    ensure!(record.schema == SCHEMA, "schema {} is not known here", record.schema);
    Ok(record)
}

fn tables(folder: &str, record: &PythonRecord) -> String {
    let PythonRecord { environment, tests, .. } = record;
    let commit = record.commit.get(..7).unwrap_or(&record.commit);
    let tests = match tests {
        Some(Tests { passed, failed, skipped, broke_off }) => {
            let end = broke_off.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
            format!("{passed} passed, {failed} failed, {skipped} skipped{end}")
        }
        None => "not run".to_owned(),
    };
    let mut text = format!(
        "{}, torch {}, transformers {}, commit {commit}, from `records/{folder}`. GPU tests: {tests}.\n\nWhole models with random weights before and after `msdeform.patch()`: median time of a pass \
         (`training`: forward and backward) and peak memory. The error is that of the output, patched against \
         unpatched.\n\n\
         | model | input | pass | format | before | after | speed-up | memory before | after | error |\n\
         |---|---|---|---|--:|--:|--:|--:|--:|--:|\n",
        environment.gpu, environment.torch, environment.transformers,
    );
    for row in &record.models {
        let ModelRow { model, images, height, width, pass, dtype, before, after, .. } = row;
        let error = row.output_error.map_or_else(|| "-".to_owned(), |error| format!("{error:.0e}"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {model} | {images} x {height} x {width} | {pass} | {dtype} | {:.1} ms | {:.1} ms | {:.2}x | {:.0} MiB | \
             {:.0} MiB | {error} |",
            before.median_ms,
            after.median_ms,
            before.median_ms / after.median_ms,
            before.peak_mib,
            after.peak_mib,
        );
    }
    text += "\nWhat a call costs on the host, on a problem too small to take time itself (CPU time; `torch.add`, and \
             `torch.mul` with its backward pass, show PyTorch's own share: it hands the backward pass of a GPU to another \
             thread, whose time counts too):\n\n\
             | tensors on | inference | forward, recorded | gradients, called alone | forward and backward | `add` | \
             `mul`, forward and backward |\n\
             |---|--:|--:|--:|--:|--:|--:|\n";
    let optional = |time_us: Option<f64>| {
        time_us.map_or_else(|| "-".to_owned(), |time_us| format!("{time_us:.1} us"))
    };
    for row in &record.host_cost {
        let _ = writeln!(
            text,
            "| {} | {:.1} us | {:.1} us | {} | {:.1} us | {:.1} us | {} |",
            row.device,
            row.inference_us,
            row.forward_with_gradients_us,
            optional(row.gradient_us),
            row.forward_and_backward_us,
            row.add_us,
            optional(row.mul_forward_and_backward_us)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
        "environment": {"gpu": "G", "torch": "2.11", "transformers": "5"},
        "tests": {"passed": 70, "failed": 0, "skipped": 1},
        "host_cost": [{"device": "cuda", "inference_us": 9.87, "forward_with_gradients_us": 20, "gradient_us": 15.5,
            "forward_and_backward_us": 60, "add_us": 7}],
        "models": [{"model": "DETR", "images": 2, "height": 800, "width": 1066, "pass": "training", "dtype": "f16",
            "output_error": 0.00012, "before": {"median_ms": 100, "peak_mib": 2000.4},
            "after": {"median_ms": 50, "peak_mib": 1000}}]}"#;

    #[test]
    fn the_record_stands_between_the_markers_and_nothing_else_changes() {
        let root =
            std::env::temp_dir().join(format!("msdeform-python-record-{}", std::process::id()));
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let folder = root.join("gpu/a-python");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("python.json"), RECORD).unwrap();
        let spliced = splice(&text, &root, Some("gpu/a-python")).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(spliced.starts_with(&format!("before\n{BEGIN}\nG, torch 2.11")), "{spliced}");
        assert!(spliced.ends_with(&format!("\n{END}\nafter\n")), "{spliced}");
        assert!(
            spliced.contains("`records/gpu/a-python`") && !spliced.contains("old"),
            "{spliced}"
        );
        assert!(spliced.contains("| 100.0 ms | 50.0 ms | 2.00x | 2000 MiB | 1000 MiB | 1e-4 |"));
        assert!(spliced.contains("| cuda | 9.9 us | 20.0 us | 15.5 us | 60.0 us | 7.0 us | - |"));
    }

    #[test]
    fn a_readme_without_markers_or_a_broken_record_is_an_error() {
        assert!(splice("nothing", Path::new("."), None).is_err());
        assert!(serde_json::from_str::<PythonRecord>("{}").is_err());
    }

    #[test]
    fn a_run_that_broke_off_shows_what_it_has() {
        let whole: serde_json::Value = serde_json::from_str(RECORD).unwrap();
        let mut part = whole.clone();
        part["models"][0]["output_error"] = serde_json::Value::Null;
        part["tests"]["broke_off"] = "not done after 80 s".into();
        let text = tables("f", &serde_json::from_value(part).unwrap());
        assert!(
            text.contains("1 skipped (not done after 80 s).") && text.contains("1000 MiB | - |"),
            "{text}"
        );
        let mut little = whole;
        for key in ["tests", "host_cost", "models"] {
            little.as_object_mut().unwrap().remove(key);
        }
        assert!(
            tables("f", &serde_json::from_value(little).unwrap()).contains("GPU tests: not run.")
        );
    }
}
