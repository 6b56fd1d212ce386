//! The table of `docs/onnx-runtime.md`, from records of `benches/onnx_runtime.py`.

use std::path::Path;

use askama::Template;
use msdeform_lab::RecordError;
use msdeform_lab::record::{folders, read_file};
use serde::Deserialize;

use crate::filters;
use crate::table::or_nothing;

const FILE: &str = "onnxruntime.json";

#[derive(Deserialize, Template)]
#[template(path = "onnx.md")]
struct OnnxRecord {
    /// Below the folder of all records.
    #[serde(skip)]
    folder: String,
    date: String,
    commit: String,
    environment: Environment,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Environment {
    cpu: String,
    onnxruntime: String,
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
}

#[derive(Deserialize)]
struct Quantiles {
    p25: f64,
    median: f64,
    p75: f64,
}

/// The tables of all devices, each from its newest record under `root`.
pub(crate) fn tables(root: &Path) -> Result<String, RecordError> {
    let mut tables = Vec::new();
    for device in folders(root)? {
        // Their names begin with their dates.
        let runs = folders(&device)?;
        let Some(run) = runs.iter().rfind(|run| run.join(FILE).is_file()) else { continue };
        let folder = run.strip_prefix(root).unwrap_or(run).display().to_string();
        let record = OnnxRecord { folder, ..read_file(&run.join(FILE))? };
        tables.push(record.to_string());
    }
    Ok(or_nothing(&tables, "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
        "environment": {"cpu": "P", "onnxruntime": "1.31.1", "load": 0.5}, "rows": []}"#;

    #[test]
    fn the_newest_record_of_a_device_is_a_table() {
        let root = tempfile::tempdir().unwrap();
        assert!(tables(root.path()).unwrap().contains("Nothing"));
        for (run, text) in
            [("2026-01-01-a-onnxruntime", "broken"), ("2026-01-02-b-onnxruntime", RECORD)]
        {
            let folder = root.path().join("p-2c").join(run);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(FILE), text).unwrap();
        }
        let found = tables(root.path()).unwrap();
        assert!(found.contains("`records/p-2c/2026-01-02-b-onnxruntime`"), "{found}");
    }
}
