//! The records that documents quote: one for each device, named in `records/manifest.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use msdeform_lab::counters::CounterFile;
use msdeform_lab::record::{
    Figure, Run, SCHEMA, load_all, load_one, read_file, replace_file, to_json,
};
use msdeform_lab::verify::{Report, Verification};
use msdeform_lab::workload::Label;
use msdeform_lab::{Measurement, Record, RecordError};
use serde::{Deserialize, Serialize};

/// The records of a device that documents quote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Folder of the times and counters, below that of the device.
    pub record: String,
    /// Folders of the Python package's records, where there are some: first that of its README.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub python: Vec<String>,
}

/// `records/manifest.json`: the release of every device, by the device's folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    pub releases: BTreeMap<String, Release>,
}

const FILE: &str = "manifest.json";

impl Default for Manifest {
    fn default() -> Self {
        Self { schema: SCHEMA, releases: BTreeMap::new() }
    }
}

impl Manifest {
    /// The manifest of a folder of records; `None` if the folder has no manifest.
    pub fn load(records: &Path) -> Result<Option<Self>, RecordError> {
        let path = records.join(FILE);
        if path.is_file() { read_file(&path).map(Some) } else { Ok(None) }
    }

    pub fn write(&self, records: &Path) -> Result<(), RecordError> {
        replace_file(&records.join(FILE), &to_json(self)?)
    }
}

/// The records that documents quote, one for each device, oldest first; all records if there is no manifest.
pub fn load_releases(records: &Path) -> Result<Vec<Record>, RecordError> {
    let Some(manifest) = Manifest::load(records)? else { return load_all(records) };
    let mut loaded = manifest
        .releases
        .iter()
        .map(|(slug, release)| load_one(&records.join(slug).join(&release.record)))
        .collect::<Result<Vec<_>, _>>()?;
    loaded.sort_by(|a, b| a.date.cmp(&b.date));
    Ok(loaded)
}

/// Merges the runs in these folders with their counters, and writes the record into a folder of its own below `root`. `None`
/// without runs, or if they are of several devices.
pub fn write_merged(
    runs: &[PathBuf],
    root: &Path,
) -> Result<Option<(Record, PathBuf)>, RecordError> {
    let records = runs.iter().map(|run| load_one(run)).collect::<Result<_, _>>()?;
    let Some(merged) = merge(records) else { return Ok(None) };
    let folder = crate::write(&merged, root)?;
    let counted = CounterFile::of_runs(runs)?;
    if !counted.is_empty() {
        CounterFile::join(&folder, &counted)?;
    }
    Ok(Some((merged, folder)))
}

/// Several runs on one device as one record: the newest measurement of each combination, each with the run it comes
/// from, and what was verified of it. `None` without records, or if they are of several devices.
fn merge(mut records: Vec<Record>) -> Option<Record> {
    records.sort_by(|a, b| a.date.cmp(&b.date));
    let mut merged = records.last()?.clone();
    if records.iter().any(|record| record.device.slug != merged.device.slug) {
        return None;
    }
    // By the date of each run: one of the records may hold several.
    let mut newest: BTreeMap<_, (Run, Measurement)> = BTreeMap::new();
    let mut checked = BTreeMap::new();
    for record in records {
        for measurement in &record.measurements {
            let run = record.run_of(measurement);
            let key = Figure::of(&record, measurement).key();
            if newest.get(&key).is_none_or(|(known, _)| known.date <= run.date) {
                newest.insert(key, (run, measurement.clone()));
            }
        }
        checked.extend(record.verification.checked.into_iter().map(|c| (c.label.clone(), c)));
    }
    merged.runs = newest.values().map(|(run, _)| run.clone()).collect();
    merged.runs.sort_by(|a, b| a.date.cmp(&b.date));
    merged.runs.dedup();
    let of_run = |(run, measurement): (Run, Measurement)| {
        let at = merged.runs.iter().position(|known| *known == run).unwrap_or(0);
        Measurement { run: at, ..measurement }
    };
    merged.measurements = newest.into_values().map(of_run).collect();
    // The verification of everything that was timed. Tests repeat the rest, and skips belong to one command line.
    let is_timed = |check: &Verification| {
        let Label { batch, queries, .. } = check.label;
        let same = |m: &Measurement| Label { batch, queries, ..m.label.clone() } == check.label;
        merged.measurements.iter().any(same)
    };
    let checked = checked.into_values().filter(is_timed).collect();
    merged.verification = Report { checked, skipped: Vec::new() };
    Some(merged)
}

#[cfg(test)]
mod tests {
    use msdeform_lab::fixtures::record_of;
    use msdeform_lab::record::newest;

    use super::*;

    #[test]
    fn merged_runs_keep_the_newest_of_each_combination_and_where_it_comes_from() {
        let mut first = record_of("2026-01-01T00:00:00Z", 3.0);
        let mut other = first.measurements[0].clone();
        other.label.dtype = "f16".into();
        first.measurements.push(other);
        let mut second = record_of("2026-01-02T00:00:00Z", 4.0);
        second.provenance.commit = "fedcba9876543210".into();
        let superseded = record_of("2025-01-02T00:00:00Z", 9.0);
        let merged = merge(vec![second.clone(), superseded, first]).unwrap();
        let found: Vec<(String, f64, String)> = newest(std::slice::from_ref(&merged))
            .into_iter()
            .map(|figure| (figure.dtype, figure.median_us, figure.commit))
            .collect();
        let (old, new) = ("0123456789abcdef".to_owned(), "fedcba9876543210".to_owned());
        assert_eq!(found, [("f32".into(), 4.0, new), ("f16".into(), 3.0, old)]);
        assert_eq!(merged.runs.len(), 2, "a run that was replaced is not named");
        assert_eq!(merged.commits(), ["012345678", "fedcba987"]);
        // Once more changes nothing: a release can be added to.
        let again = merge(vec![merged.clone(), second]).unwrap();
        assert_eq!(again.runs, merged.runs);
        let mut foreign = record_of("2026-01-01T00:00:00Z", 3.0);
        foreign.device.slug = "other".into();
        assert!(merge(vec![merged, foreign]).is_none());
        assert!(merge(Vec::new()).is_none());
    }

    #[test]
    fn a_manifest_names_what_documents_quote() {
        let root = tempfile::tempdir().unwrap();
        assert!(Manifest::load(root.path()).unwrap().is_none());
        let record = record_of("2026-02-03T04:05:06Z", 800.0);
        let folder = crate::write(&record, root.path()).unwrap();
        crate::write(&record, root.path()).unwrap();
        assert_eq!(load_releases(root.path()).unwrap().len(), 2, "all, where nothing is named");
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let mut manifest = Manifest::default();
        let release = Release { record: name, python: Vec::new() };
        manifest.releases.insert("test-chip-2c".into(), release);
        manifest.write(root.path()).unwrap();
        assert_eq!(load_releases(root.path()).unwrap().len(), 1);
        let read = Manifest::load(root.path()).unwrap().unwrap();
        assert_eq!(read.releases, manifest.releases);
    }

    /// Evidence is written by commands. A file that has no checksum, or the checksum of another text, was edited.
    #[test]
    fn every_committed_record_is_as_a_command_wrote_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let listed = std::process::Command::new("git")
            .args(["ls-files", "records"])
            .current_dir(&root)
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let files: Vec<&str> = listed
            .lines()
            .filter(|file| file.ends_with(".json") || file.ends_with(".csv"))
            .collect();
        assert!(files.len() > 10, "{listed}");
        for file in files {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            assert_eq!(msdeform_files::check_seal(&text), Ok(true), "{file}");
        }
    }
}
