//! How far the built-in choices are from the best ones: `records/<device>/tuned.json`.

use std::path::{Path, PathBuf};

use crate::device::Device;
use serde::{Deserialize, Serialize};

use super::TunedCase;
use crate::record::{self, DeviceRecord, Environment, Provenance, RecordError, SCHEMA};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Workload, format and direction.
    pub call: String,
    pub reason: String,
}

/// One run of `msdeform tune`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TuneRecord {
    pub schema: u32,
    pub date: String,
    #[serde(flatten)]
    pub provenance: Provenance,
    pub device: DeviceRecord,
    pub environment: Environment,
    pub cases: Vec<TunedCase>,
    /// What was not: nothing fits it, it failed, or the run ended before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<Unfinished>,
}

const FILE: &str = "tuned.json";

impl TuneRecord {
    pub fn new(device: &dyn Device, cases: Vec<TunedCase>, unfinished: Vec<Unfinished>) -> Self {
        Self {
            schema: SCHEMA,
            date: record::now(),
            provenance: Provenance::now(),
            device: DeviceRecord::of(device, None),
            environment: Environment::now(),
            cases,
            unfinished,
        }
    }

    /// Writes it below the folder of all records, in place of an older one, whole or not at all.
    pub fn write(&self, records: &Path) -> Result<PathBuf, RecordError> {
        record::write(records.join(&self.device.slug).join(FILE), self)
    }

    /// Every one below the folder of all records.
    /// [`RecordError`] naming the file: a broken one is not passed over.
    pub fn load_all(records: &Path) -> Result<Vec<Self>, RecordError> {
        record::read_in_folders(records, FILE)
    }
}
