//! The tables and the picture of the Python package, from records of `benches/record.py`.

mod models;
pub mod runs;

use std::path::Path;

use msdeform_lab::RecordError;
use msdeform_lab::record::read_file;
use serde_json::{Value, json};

use crate::chart::Chart;
use crate::table::distinct;
use models::{ModelSpeed, Speed};

/// What models are from, as `benches/record.py` names them in the environment, after PyTorch.
pub(crate) const PACKAGES: [&str; 8] =
    ["torch", "transformers", "ultralytics", "rfdetr", "libreyolo", "mmdet", "mmcv", "mmcv-lite"];
const PASSES: [&str; 2] = ["inference", "training"];
const EAGER: &str = "eager";
const GRAPH: &str = "graph";

/// Reads a record, and adds what templates show of it.
pub(crate) fn load(root: &Path, folder: &str) -> Result<Value, RecordError> {
    Ok(shown(read_file(&root.join(folder).join(runs::FILE))?, folder))
}

/// The record with its folder, of which there are several if rows of one were added to another, its device, the usual dtype,
/// which is what people train in, and the speed-up of each row over the model as it is and over functions replaced alone.
fn shown(mut record: Value, folder: &str) -> Value {
    let environment = &record["environment"];
    let device = environment["gpu"].as_str().or_else(|| environment["cpu"].as_str());
    let device = device.unwrap_or("a device without a name").to_owned();
    let dtype = if environment["gpu"].is_string() { "bf16" } else { "f32" };
    record["folders"] = json!([folder]);
    record["device"] = device.into();
    record["usual_dtype"] = dtype.into();
    for row in record["models"].as_array_mut().into_iter().flatten() {
        let [speedup, by_fusing] = ["before", "plain"].map(|way| speed(&row[way], &row["after"]));
        row["speedup"] = json!(speedup);
        row["by_fusing"] = json!(by_fusing);
    }
    record
}

fn speed(before: &Value, after: &Value) -> Option<Speed> {
    let samples = |side: &Value| -> Vec<f64> {
        side["samples_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let medians = [before["median_ms"].as_f64()?, after["median_ms"].as_f64()?];
    Speed::of(medians, [&samples(before), &samples(after)])
}

fn models(record: &Value) -> impl Iterator<Item = &Value> {
    record["models"].as_array().into_iter().flatten()
}

/// What the README shows: models of several packages, which may have been measured one after the other on a device.
pub(crate) fn usual(records: &[Value]) -> Option<Value> {
    let (first, others) = records.split_first()?;
    Some(others.iter().fold(first.clone(), with))
}

/// Adds the models of a record of the same device that the first does not have, in the usual dtype, eager and as graphs.
fn with(mut record: Value, other: &Value) -> Value {
    let dtype = &record["usual_dtype"];
    let key = |row: &Value| ["model", "mode", "pass", "dtype"].map(|name| row[name].clone());
    let known: Vec<_> = models(&record).map(key).collect();
    let is_new = |row: &&Value| {
        let is_shown = row["mode"] == EAGER || row["mode"] == GRAPH;
        is_shown && row["dtype"] == *dtype && !known.contains(&key(row))
    };
    let new: Vec<Value> = models(other).filter(is_new).cloned().collect();
    if new.is_empty() || record["device"] != other["device"] {
        return record;
    }
    let lists = [("models", &new[..]), ("folders", &[other["folders"][0].clone()])];
    for (name, added) in lists {
        record[name].as_array_mut().into_iter().for_each(|list| list.extend_from_slice(added));
    }
    for package in PACKAGES {
        let version = &mut record["environment"][package];
        if version.is_null() {
            *version = other["environment"][package].clone();
        }
    }
    record
}

/// The README's picture: models in the usual dtype, in the mode that a host slower than its GPU slows down least. Some models
/// cannot be run in it.
pub(crate) fn picture(record: &Value) -> Chart {
    let has_graphs = models(record).any(|row| row["mode"] == GRAPH);
    let (mode, called) = if has_graphs { (GRAPH, "as CUDA graphs") } else { (EAGER, EAGER) };
    let dtype = record["usual_dtype"].as_str().unwrap_or_default();
    let speed_of = |name: &Value, pass| {
        let is_it = |row: &&Value| {
            row["model"] == *name
                && row["mode"] == mode
                && row["pass"] == pass
                && row["dtype"] == dtype
        };
        let row = models(record).find(is_it)?;
        speed(&row["before"], &row["after"])
    };
    let all = distinct(models(record).map(|row| &row["model"])).into_iter().map(|name| {
        let package = models(record).find(|row| row["model"] == *name);
        (title(name, package), PASSES.map(|pass| speed_of(name, pass)))
    });
    let speeds: Vec<ModelSpeed> =
        all.filter(|(_, speedups)| speedups.iter().any(Option::is_some)).collect();
    let device = record["device"].as_str().unwrap_or_default();
    models::picture(&speeds, &format!("whole models, {called}, {dtype}, {device}"))
}

/// A model of transformers needs no more than its name.
fn title(name: &Value, row: Option<&Value>) -> String {
    let name = name.as_str().unwrap_or_default();
    match row.and_then(|row| row["package"].as_str()) {
        None | Some("transformers") => name.to_owned(),
        Some(package) => format!("{name}, {package}"),
    }
}

#[cfg(test)]
mod tests;
