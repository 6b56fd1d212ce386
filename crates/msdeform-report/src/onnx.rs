//! The table of `docs/onnx-runtime.md`, from records of `benches/onnx_runtime.py`.

use std::path::Path;

use msdeform_lab::RecordError;
use msdeform_lab::record::{folders, read_file};
use serde::Deserialize;

use crate::table::{Table, cells, or_nothing};

const FILE: &str = "onnxruntime.json";

#[derive(Debug, Deserialize)]
struct OnnxRecord {
    date: String,
    commit: String,
    environment: Environment,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Environment {
    cpu: String,
    onnxruntime: String,
    load: f64,
}

#[derive(Debug, Deserialize)]
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

#[derive(Debug, Deserialize)]
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
        let name = run.strip_prefix(root).unwrap_or(run).display().to_string();
        tables.push(table(&name, &read_file(&run.join(FILE))?));
    }
    Ok(or_nothing(&tables, "\n"))
}

fn table(name: &str, record: &OnnxRecord) -> String {
    let OnnxRecord { date, commit, environment: Environment { cpu, onnxruntime, load }, .. } =
        record;
    let date = date.get(..10).unwrap_or(date);
    let commit = commit.get(..7).unwrap_or(commit);
    let ms = |Quantiles { p25, median, p75 }: &Quantiles| {
        format!("{:.2} ms ({:.2} to {:.2})", median * 1e-3, p25 * 1e-3, p75 * 1e-3)
    };
    let rows = record.rows.iter().map(|row| {
        let Row { workload, images, dtype, threads, rel_l2, .. } = row;
        let Quantiles { p25, median, p75 } = &row.speedup;
        cells![
            format!("{workload}, N = {images}, {dtype}"),
            threads,
            ms(&row.grid_sample_us),
            ms(&row.operator_us),
            format!("{median:.1}x ({p25:.1} to {p75:.1})"),
            format!("{rel_l2:.0e}"),
        ]
    });
    let columns = "workload | >threads | >GridSample, quartiles | >operator, quartiles | >speed-up, quartiles | >difference";
    format!(
        "{cpu}, ONNX Runtime {onnxruntime}, {date}, commit {commit}, load {load} from other work, from `records/{name}`.\n\n{}",
        Table::new(columns).with(rows).markdown()
    )
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
