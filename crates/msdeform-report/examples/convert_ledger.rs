//! Converts `records/h200/ledger.json` of the old format, whose every entry matches the sources of this commit, to the new
//! one. Run once, at the commit that introduces the new format; deleted after that.
#![allow(clippy::unwrap_used, clippy::panic, reason = "run once by a person")]

use std::collections::BTreeMap;
use std::path::Path;

use msdeform::{DType, Operator};
use msdeform_bench::models;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda_lab::registry;
use msdeform_report::ledger::{Ledger, Sources};
use serde_json::{Map, Value, json};

fn unfold(name: &str, words: &Value, found: &mut BTreeMap<String, Value>) {
    match words {
        Value::Object(further) => {
            for (word, rest) in further {
                let apart = if name.is_empty() || word.is_empty() { "" } else { " " };
                unfold(&format!("{name}{apart}{word}"), rest, found);
            }
        }
        error => drop(found.insert(name.to_owned(), error.clone())),
    }
}

fn run(entry: &Value, by: &str) -> Map<String, Value> {
    let mut run = Map::new();
    for key in ["gpu", "driver", "nvrtc", "commit"] {
        if let Some(value) = entry.get(key) {
            run.insert(key.to_owned(), value.clone());
        }
    }
    run.insert("by".to_owned(), by.into());
    run
}

fn main() {
    let path = Path::new("records/h200/ledger.json");
    let old: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut workloads, mut random, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    for operator in Operator::ALL {
        let (section, reachable) = match operator.name {
            "plain" => (&old, models::specialisations(&DeviceProps::h200())),
            _ => (&old["from_offsets"], models::specialisations_from_offsets(&DeviceProps::h200())),
        };
        let start = |entry: &Value, by: &str| {
            let mut line = run(entry, by);
            line.insert("operator".to_owned(), operator.name.into());
            for key in ["variant", "dtype"] {
                line.insert(key.to_owned(), entry[key].clone());
            }
            let variant = registry::find(entry["variant"].as_str().unwrap()).unwrap();
            (line, variant)
        };
        for entry in section["variants"].as_array().unwrap() {
            let (mut line, variant) = start(entry, "verify");
            let dtype: DType = entry["dtype"].as_str().unwrap().parse().unwrap();
            let print = Sources::of(variant).fingerprint(variant, dtype, operator);
            line.insert("fingerprint".to_owned(), print.into());
            for key in ["cases", "worst_rel_l2", "bound", "passed"] {
                line.insert(key.to_owned(), entry[key].clone());
            }
            workloads.push(line);
        }
        for entry in section["random"].as_array().unwrap() {
            let (mut line, variant) = start(entry, "soak");
            line.insert("sources".to_owned(), Sources::of(variant).hash().into());
            for key in ["seed", "problems", "failed"] {
                line.insert(key.to_owned(), entry[key].clone());
            }
            random.push(line);
        }
        for group in section["compiled"].as_array().unwrap() {
            let mut named = BTreeMap::new();
            unfold("", &group["specialisations"], &mut named);
            let id = group["variant"].as_str().unwrap();
            let mut errors = Map::new();
            for found in reachable.iter().filter(|found| found.variant.spec().id == id) {
                if let Some(error) = named.get(&found.name()) {
                    let hash = Sources::of(found.variant).unit_hash(&found.unit);
                    errors.insert(hash, error.clone());
                }
            }
            println!("{} {id}: {} of {} kernels", operator.name, errors.len(), named.len());
            let mut line = run(group, "verify");
            line.insert("operator".to_owned(), operator.name.into());
            line.insert("variant".to_owned(), id.into());
            line.insert("passed".to_owned(), group["passed"].clone());
            line.insert("worst_rel_l2".to_owned(), errors.into());
            kernels.push(line);
        }
    }
    let new = json!({"schema": 1, "workloads": workloads, "random": random, "kernels": kernels});
    let ledger = Ledger::parse(&new.to_string(), path).unwrap();
    for operator in Operator::ALL {
        println!("{} open: {:?}", operator.name, ledger.unverified(operator));
    }
    ledger.write(path).unwrap();
}
