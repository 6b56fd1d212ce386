//! The table of `docs/onnx-runtime.md`, from records of `benches/onnx_runtime.py`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use msdeform_report::cells;
use msdeform_report::table::Table;
use serde::Deserialize;

const SCHEMA: u32 = 1;

#[derive(Debug, Deserialize)]
struct OnnxRecord {
    schema: u32,
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
pub fn tables(root: &Path) -> Result<String> {
    let mut text = String::new();
    for device in folders(root)? {
        let is_ours = |run: &PathBuf| run.join("onnxruntime.json").is_file();
        // Their names begin with their dates.
        let Some(run) = folders(&device)?.into_iter().rfind(is_ours) else { continue };
        let name = run.strip_prefix(root).unwrap_or(&run).display().to_string();
        let file = run.join("onnxruntime.json");
        let record = read(&file).with_context(|| file.display().to_string())?;
        text += &table(&name, &record);
    }
    Ok(if text.is_empty() { "\nNothing has been measured yet.\n".to_owned() } else { text })
}

fn folders(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(root).with_context(|| root.display().to_string())?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.retain(|path| path.is_dir());
    found.sort();
    Ok(found)
}

fn read(file: &Path) -> Result<OnnxRecord> {
    let record: OnnxRecord = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    ensure!(record.schema == SCHEMA, "schema {} is not known here", record.schema);
    Ok(record)
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
        "\n{cpu}, ONNX Runtime {onnxruntime}, {date}, commit {commit}, load {load} from other work, from `records/{name}`.\n\n{}",
        Table::new(columns).with(rows).markdown()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
        "environment": {"cpu": "P", "onnxruntime": "1.31.1", "load": 0.5},
        "rows": [{"workload": "dec", "images": 1, "dtype": "f32", "threads": 2, "rel_l2": 2.1e-7,
            "grid_sample_us": {"min": 1, "p25": 1000, "median": 2000, "p75": 3000, "max": 9},
            "operator_us": {"min": 1, "p25": 100, "median": 200, "p75": 300, "max": 9},
            "speedup": {"min": 1, "p25": 9, "median": 10, "p75": 11, "max": 20}}]}"#;

    #[test]
    fn the_newest_record_of_a_device_is_a_table() {
        let root =
            std::env::temp_dir().join(format!("msdeform-onnx-record-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        assert!(tables(&root).unwrap().contains("Nothing"));
        for (run, text) in
            [("2026-01-01-a-onnxruntime", "broken"), ("2026-01-02-b-onnxruntime", RECORD)]
        {
            let folder = root.join("p-2c").join(run);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("onnxruntime.json"), text).unwrap();
        }
        let found = tables(&root);
        std::fs::remove_dir_all(&root).unwrap();
        let found = found.unwrap();
        assert!(found.contains("`records/p-2c/2026-01-02-b-onnxruntime`"), "{found}");
        let row = "| dec, N = 1, f32 | 2 | 2.00 ms (1.00 to 3.00) | 0.20 ms (0.10 to 0.30) | 10.0x (9.0 to 11.0) | 2e-7 |\n";
        assert!(found.ends_with(row), "{found}");
    }
}
