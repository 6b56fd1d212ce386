//! Runs of `benches/record.py` as one record, each row with the run that it is from.

use std::path::{Path, PathBuf};

use msdeform_lab::RecordError;
use msdeform_lab::record::{read_file, replace_file};
use serde_json::{Map, Value};

/// The file of a run.
pub const FILE: &str = "python.json";

/// What describes a run.
const PROVENANCE: [&str; 4] = ["date", "commit", "dirty", "command"];
/// Members that tell the rows of a part apart. Rows that agree in all of them are of the same thing.
const IDENTITY: [&str; 14] = [
    "workload", "model", "package", "mode", "device", "images", "height", "width", "pass", "dtype",
    "way", "scenario", "kernels", "name",
];

/// Reads the runs in these folders and merges them. `None` if there are no runs, or if they are of several devices.
pub fn load(folders: &[PathBuf]) -> Result<Option<Value>, RecordError> {
    let runs = folders.iter().map(|folder| read_file(&folder.join(FILE)));
    Ok(merge(runs.collect::<Result<Vec<Map<String, Value>>, _>>()?).map(Value::Object))
}

pub fn write(record: &Value, folder: &Path) -> Result<(), RecordError> {
    let members = record.as_object().into_iter().flatten().map(|(name, value)| {
        let text = match value {
            Value::Array(rows) => {
                let rows = rows.iter().map(Value::to_string).collect::<Vec<_>>();
                format!("[\n{}\n]", rows.join(",\n"))
            }
            other => other.to_string(),
        };
        format!("{}: {text}", Value::from(name.as_str()))
    });
    let text = format!("{{\n{}\n}}\n", members.collect::<Vec<_>>().join(",\n"));
    replace_file(&folder.join(FILE), &text)
}

/// The newest row of each thing that was measured.
fn merge(mut records: Vec<Map<String, Value>>) -> Option<Map<String, Value>> {
    let date = |record: &Map<String, Value>| record.get("date").map(Value::to_string);
    records.sort_by_key(date);
    let mut merged = records.last()?.clone();
    let device = |record: &Map<String, Value>| {
        let environment = record.get("environment")?;
        environment.get("gpu").or_else(|| environment.get("cpu")).cloned()
    };
    if records.iter().any(|record| device(record) != device(&merged)) {
        return None;
    }
    merged.retain(|_, value| !value.is_array());
    merged.remove("checksum");
    let mut runs: Vec<Value> = Vec::new();
    for record in &records {
        let first = runs.len();
        runs.extend(runs_of(record));
        let is_merged = |value: &Value| value.is_array() || value.is_object();
        for (part, value) in record.iter().filter(|(part, v)| *part != "runs" && is_merged(v)) {
            match (value, merged.entry(part).or_insert_with(|| Vec::<Value>::new().into())) {
                (Value::Array(rows), Value::Array(known)) => {
                    for row in rows {
                        known.retain(|known| !is_same(known, row));
                        known.push(from_run(row, first));
                    }
                }
                // A package that only an earlier run needed.
                (Value::Object(versions), Value::Object(all)) if part == "environment" => {
                    for (name, version) in versions {
                        all.entry(name).or_insert_with(|| version.clone());
                    }
                }
                (Value::Object(_), known) => *known = from_run(value, first),
                _ => {}
            }
        }
    }
    merged.insert("runs".to_owned(), runs.into());
    Some(merged)
}

/// The runs of a record; of one that lists none, itself.
fn runs_of(record: &Map<String, Value>) -> Vec<Value> {
    if let Some(Value::Array(runs)) = record.get("runs") {
        return runs.clone();
    }
    let own =
        PROVENANCE.iter().filter_map(|&name| Some((name.to_owned(), record.get(name)?.clone())));
    vec![Value::Object(own.collect())]
}

fn is_same(one: &Value, other: &Value) -> bool {
    IDENTITY.iter().all(|name| {
        let (one, other) = (one.get(name), other.get(name));
        // What is a member of its own in one row may be a measurement in another.
        let is_name = |value: &&Value| value.is_string() || value.is_number();
        one.filter(is_name) == other.filter(is_name)
    })
}

/// A row with its run's place in the list of all runs.
fn from_run(row: &Value, first: usize) -> Value {
    let mut row = row.clone();
    let within = row.get("run").and_then(Value::as_u64).unwrap_or(0);
    if let Value::Object(members) = &mut row {
        members.insert("run".to_owned(), (first as u64 + within).into());
    }
    row
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(date: &str, gpu: &str, models: &Value) -> Map<String, Value> {
        let record = json!({
            "schema": 1, "date": date, "commit": date, "command": "python benches/record.py",
            "environment": {"gpu": gpu, date: "1.0"}, "models": models,
        });
        record.as_object().unwrap().clone()
    }

    #[test]
    fn the_newest_row_of_a_model_counts_and_names_its_run() {
        let row = |model: &str, speedup: f64| json!({"model": model, "dtype": "bf16", "speedup": speedup});
        let old = run("2026-01-01", "H200", &json!([row("a", 1.0), row("b", 2.0)]));
        let new = run("2026-01-02", "H200", &json!([row("a", 3.0)]));
        let merged = merge(vec![new.clone(), old.clone()]).unwrap();
        let models = merged["models"].as_array().unwrap();
        assert_eq!(models.len(), 2);
        assert_eq!((&models[0]["model"], &models[0]["run"]), (&json!("b"), &json!(0)));
        assert_eq!((&models[1]["speedup"], &models[1]["run"]), (&json!(3.0), &json!(1)));
        let commits: Vec<&Value> =
            merged["runs"].as_array().unwrap().iter().map(|run| &run["commit"]).collect();
        assert_eq!(commits, ["2026-01-01", "2026-01-02"]);
        assert_eq!(merged["environment"]["2026-01-01"], "1.0", "versions of both");
        // A merged record can be merged again.
        let newest = run("2026-01-03", "H200", &json!([row("b", 4.0)]));
        let again = merge(vec![merged, newest]).unwrap();
        assert_eq!(again["runs"].as_array().unwrap().len(), 3);
        assert_eq!(again["models"][1]["run"], 2);
        assert!(merge(vec![old, run("2026-01-02", "H100", &json!([]))]).is_none());
    }

    #[test]
    fn a_merged_record_is_sealed_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let record = Value::Object(run("2026-01-01", "H200", &json!([{"model": "a"}])));
        write(&record, folder.path()).unwrap();
        let found = load(&[folder.path().to_owned()]).unwrap().unwrap();
        assert_eq!(found["models"][0]["run"], 0);
        let path = folder.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("H200", "H100")).unwrap();
        assert!(load(&[folder.path().to_owned()]).is_err());
    }
}
