//! Evidence: raw samples with everything needed to judge them, and the figures drawn from it.

mod figures;
mod folder;
mod json;
mod provenance;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use figures::{Figure, newest};
pub use folder::{
    FILE, default_folder, find_checkout, folders, load_all, load_one, parse, read_file,
    replace_file,
};
pub(crate) use folder::{read_in_folders, write};
pub use json::to_json;
pub use provenance::{Build, Environment, Provenance, is_python_script};

use crate::device::{Bandwidth, Device};
use crate::{Measurement, STANDARD_SEED};

use crate::measure::is_default;
use crate::verify::Report;

/// Version of the file format; readers refuse what they do not know.
pub const SCHEMA: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file or folder that cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// A file that is too large, no file, or that the system does not give or take.
    #[error(transparent)]
    File(#[from] msdeform_files::FileError),
    #[error("{} is not a record: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{} is not as a command wrote it: {source}", path.display())]
    Edited { path: PathBuf, source: msdeform_files::BrokenSeal },
    #[error("{} has format {found}, this tool reads {SCHEMA}; use the tool that wrote it", path.display())]
    Schema { path: PathBuf, found: u32 },
    /// Too many records of one commit on one day.
    #[error("{} has no free name left for a record of this commit", path.display())]
    NoFreeName { path: PathBuf },
    #[error("cannot serialise the record: {0}")]
    Serialise(serde_json::Error),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Folder under `records/`.
    pub slug: String,
    /// `cpu` or `cuda`.
    pub kind: String,
    /// One line for people.
    pub name: String,
    pub facts: BTreeMap<String, String>,
    pub bandwidth: Option<Bandwidth>,
}

/// A run whose measurements stand in a record with those of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// In UTC, RFC 3339; so are the dates of all files among the records.
    pub date: String,
    #[serde(flatten)]
    pub provenance: Provenance,
}

/// One run of the laboratory, or several on one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub schema: u32,
    pub date: String,
    #[serde(flatten)]
    pub provenance: Provenance,
    pub device: DeviceRecord,
    pub environment: Environment,
    pub seed: u64,
    /// The runs that it was merged from, oldest first; none where it is one itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    pub measurements: Vec<Measurement>,
    pub verification: Report,
    /// Cases that the command had not come to when this was written; none in a record that is whole.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unfinished_cases: usize,
}

impl DeviceRecord {
    pub fn of(device: &dyn Device, bandwidth: Option<Bandwidth>) -> Self {
        Self {
            slug: device.slug().to_owned(),
            kind: device.id().kind().name().to_owned(),
            name: device.name().to_owned(),
            facts: device.facts(),
            bandwidth,
        }
    }
}

/// Now, as records write it.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Record {
    pub fn new(
        device: &dyn Device,
        bandwidth: Option<Bandwidth>,
        measurements: Vec<Measurement>,
        verification: Report,
    ) -> Self {
        Self {
            schema: SCHEMA,
            date: now(),
            provenance: Provenance::now(),
            device: DeviceRecord::of(device, bandwidth),
            environment: Environment::now(),
            seed: STANDARD_SEED,
            runs: Vec::new(),
            measurements,
            verification,
            unfinished_cases: 0,
        }
    }

    pub fn run_of(&self, measurement: &Measurement) -> Run {
        self.runs.get(measurement.run).cloned().unwrap_or_else(|| self.own_run())
    }

    fn own_run(&self) -> Run {
        Run { date: self.date.clone(), provenance: self.provenance.clone() }
    }

    /// The commits that its measurements are of, oldest run first.
    pub fn commits(&self) -> Vec<String> {
        let own = [self.own_run()];
        let runs = if self.runs.is_empty() { &own[..] } else { &self.runs };
        let mut commits: Vec<String> = Vec::new();
        for revision in runs.iter().map(|run| run.provenance.revision()) {
            if !commits.contains(&revision) {
                commits.push(revision);
            }
        }
        commits
    }
}

#[cfg(test)]
mod tests;
