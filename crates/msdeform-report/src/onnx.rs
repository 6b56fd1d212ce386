//! The tables of `docs/onnx-runtime.md` and `docs/openvino.md`, from records of `benches/onnx_runtime.py` and
//! `benches/openvino_runtime.py`.

use std::path::Path;

use askama::Template;
use msdeform_lab::RecordError;
use msdeform_lab::record::{folders, read_file};
use serde::Deserialize;

use crate::filters;
use crate::table::or_nothing;

/// A runtime: its record's file, and what readers call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runtime {
    file: &'static str,
    name: &'static str,
}

pub(crate) const ONNX_RUNTIME: Runtime = Runtime { file: "onnxruntime.json", name: "ONNX Runtime" };
pub(crate) const OPENVINO: Runtime = Runtime { file: "openvino.json", name: "OpenVINO" };

#[derive(Deserialize, Template)]
#[template(path = "onnx.txt")]
struct OnnxRecord {
    /// Below the folder of all records.
    #[serde(skip)]
    folder: String,
    #[serde(skip)]
    runtime: &'static str,
    date: String,
    commit: String,
    environment: Environment,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Environment {
    cpu: String,
    #[serde(alias = "onnxruntime", alias = "openvino")]
    version: String,
    load: f64,
}

#[derive(Deserialize)]
struct Row {
    workload: String,
    images: usize,
    dtype: String,
    threads: usize,
    rel_l2: f64,
    grid_sample_us: Quantiles,
    operator_us: Quantiles,
    /// Of the ratios of neighbours in time.
    speedup: Quantiles,
    /// Of the operator as Python registers it, in `OpenVINO`.
    python_speedup: Option<Quantiles>,
}

#[derive(Deserialize)]
struct Quantiles {
    p25: f64,
    median: f64,
    p75: f64,
}

/// The tables of all devices, each from its newest record under `root`.
pub(crate) fn tables(root: &Path, runtime: Runtime) -> Result<String, RecordError> {
    let mut tables = Vec::new();
    for device in folders(root)? {
        // Their names begin with their dates.
        let runs = folders(&device)?;
        let Some(run) = runs.iter().rfind(|run| run.join(runtime.file).is_file()) else { continue };
        let folder = run.strip_prefix(root).unwrap_or(run).display().to_string();
        let record: OnnxRecord = read_file(&run.join(runtime.file))?;
        tables.push(OnnxRecord { folder, runtime: runtime.name, ..record }.to_string());
    }
    Ok(or_nothing(&tables, "\n"))
}

impl OnnxRecord {
    fn has_python(&self) -> bool {
        self.rows.iter().any(|row| row.python_speedup.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
        "environment": {"cpu": "P", "onnxruntime": "1.31.1", "load": 0.5}, "rows": []}"#;

    #[test]
    fn the_newest_record_of_a_device_is_a_table() {
        let root = tempfile::tempdir().unwrap();
        assert!(tables(root.path(), ONNX_RUNTIME).unwrap().contains("Nothing"));
        for (run, text) in
            [("2026-01-01-a-onnxruntime", "broken"), ("2026-01-02-b-onnxruntime", RECORD)]
        {
            let folder = root.path().join("p-2c").join(run);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(ONNX_RUNTIME.file), text).unwrap();
        }
        let found = tables(root.path(), ONNX_RUNTIME).unwrap();
        assert!(found.contains("`records/p-2c/2026-01-02-b-onnxruntime`"), "{found}");
        assert!(!found.contains("from Python"), "{found}");
    }

    #[test]
    fn a_record_of_openvino_also_has_speed_ups_from_python() {
        let time = r#"{"p25": 1e3, "median": 2e3, "p75": 4e3}"#;
        let row = format!(
            r#"{{"workload": "w", "images": 1, "dtype": "f32", "threads": 2, "rel_l2": 1e-6, "grid_sample_us": {time},
            "operator_us": {time}, "speedup": {time}, "python_speedup": {{"p25": 7, "median": 8, "p75": 9}}}}"#
        );
        let record = RECORD.replace("onnxruntime", "openvino").replace("[]", &format!("[{row}]"));
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("p-2c").join("2026-01-02-b-openvino");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(OPENVINO.file), record).unwrap();
        let found = tables(root.path(), OPENVINO).unwrap();
        for part in ["OpenVINO 1.31.1", "from Python", "8.0x (7.0 to 9.0)"] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert!(tables(root.path(), ONNX_RUNTIME).unwrap().contains("Nothing"));
    }
}
