//! Counters next to the record whose times they explain: `records/<device>/<run>/counters.json`.

use std::path::{Path, PathBuf};

use crate::workload::Label;
use serde::{Deserialize, Serialize};

use super::KernelCounters;
use crate::digits::significant;
use crate::record::{self, Provenance, RecordError, SCHEMA};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    #[serde(flatten)]
    pub label: Label,
    #[serde(default)]
    pub commit: String,
    /// Its kernels, in the order they ran.
    pub kernels: Vec<KernelCounters>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CounterFile {
    pub schema: u32,
    /// When it was last written, in UTC, RFC 3339.
    pub date: String,
    #[serde(flatten)]
    pub provenance: Provenance,
    pub counted: Vec<Counted>,
}

const FILE: &str = "counters.json";

impl CounterFile {
    /// The counters in a record's folder; none if there are none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, RecordError> {
        let path = folder.join(FILE);
        if path.is_file() { record::read_file(&path).map(Some) } else { Ok(None) }
    }

    /// Everything read on a device, by the folder of all records; a newer reading replaces an older one.
    pub fn of_device(records: &Path, slug: &str) -> Result<Vec<Counted>, RecordError> {
        let device = records.join(slug);
        if device.is_dir() { Self::of_runs(&record::folders(&device)?) } else { Ok(Vec::new()) }
    }

    /// Likewise, of some records by their folders.
    pub fn of_runs(folders: &[PathBuf]) -> Result<Vec<Counted>, RecordError> {
        let files = folders.iter().filter_map(|folder| Self::read(folder).transpose());
        Ok(Self::newest(files.collect::<Result<Vec<_>, _>>()?))
    }

    fn newest(mut files: Vec<Self>) -> Vec<Counted> {
        files.sort_by(|a, b| a.date.cmp(&b.date));
        let mut newest: Vec<Counted> = Vec::new();
        for counted in files.into_iter().flat_map(|file| file.counted) {
            newest.retain(|old| old.label != counted.label);
            newest.push(counted);
        }
        newest.sort_by(|a, b| a.label.cmp(&b.label));
        newest
    }

    /// Adds readings to a record's folder; the same case and variant replaces what was there.
    pub fn join(folder: &Path, counted: &[Counted]) -> Result<PathBuf, RecordError> {
        let before = Self::read(folder)?.map_or_else(Vec::new, |file| file.counted);
        let kept =
            before.into_iter().filter(|old| counted.iter().all(|new| new.label != old.label));
        let file = Self {
            schema: SCHEMA,
            date: record::now(),
            provenance: Provenance::now(),
            counted: kept.chain(counted.iter().map(within_budget)).collect(),
        };
        record::write(folder.join(FILE), &file)
    }
}

/// Four digits of each reading: more than two runs have in common.
fn within_budget(counted: &Counted) -> Counted {
    let mut kept = counted.clone();
    let readings = kept.kernels.iter_mut().flat_map(|kernel| &mut kernel.readings);
    readings.for_each(|reading| reading.value = significant(reading.value, 4));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Reading;
    use crate::fixtures::record_of;

    #[test]
    fn readings_join_what_is_there_and_replace_their_own() {
        let folder = tempfile::tempdir().unwrap();
        assert!(CounterFile::read(folder.path()).unwrap().is_none());
        let mut label = record_of("2026-01-01T00:00:00Z", 1.0).measurements[0].label.clone();
        let counted = |label: &Label, value| Counted {
            label: label.clone(),
            commit: "0123456789abcdef".to_owned(),
            kernels: vec![KernelCounters {
                kernel: "k".to_owned(),
                launches: 1,
                readings: vec![Reading { name: "registers".to_owned(), value }],
            }],
        };
        CounterFile::join(folder.path(), &[counted(&label, 1.0)]).unwrap();
        CounterFile::join(folder.path(), &[counted(&label, 2.0)]).unwrap();
        label.variant = "other".to_owned();
        CounterFile::join(folder.path(), &[counted(&label, 3.0)]).unwrap();
        let file = CounterFile::read(folder.path()).unwrap().unwrap();
        let values: Vec<_> =
            file.counted.iter().map(|p| p.kernels[0].get("registers").unwrap()).collect();
        assert_eq!(values, [2.0, 3.0]);
        let root = tempfile::tempdir().unwrap();
        assert!(CounterFile::of_device(root.path(), "h200").unwrap().is_empty());
        for (run, value) in [("a", 4.0), ("b", 5.0)] {
            CounterFile::join(&root.path().join("h200").join(run), &[counted(&label, value)])
                .unwrap();
        }
        let found = CounterFile::of_device(root.path(), "h200").unwrap();
        assert_eq!(found.len(), 1, "one reading for each label");
    }
}
