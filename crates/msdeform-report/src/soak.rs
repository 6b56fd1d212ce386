//! What random problems found, kept with where and how.

use std::path::{Path, PathBuf};

use msdeform_lab::device::Device;
use msdeform_lab::record::{self, DeviceRecord, Environment, Provenance, RecordError};
use msdeform_lab::soak::SoakReport;
use serde::{Deserialize, Serialize};

/// One run of random problems.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SoakRecord {
    /// When it was made, in UTC, RFC 3339.
    pub date: String,
    #[serde(flatten)]
    pub provenance: Provenance,
    pub device: DeviceRecord,
    pub environment: Environment,
    pub report: SoakReport,
}

impl SoakRecord {
    pub fn new(device: &dyn Device, report: SoakReport) -> Self {
        Self {
            date: record::now(),
            provenance: Provenance::now(),
            device: DeviceRecord::of(device, None),
            environment: Environment::now(),
            report,
        }
    }

    /// Writes it as the device's, in place of an older one: `<folder>/<device>/soak.json`.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, RecordError> {
        let path = folder.join(&self.device.slug).join("soak.json");
        let text = serde_json::to_string_pretty(self).map_err(RecordError::Serialise)?;
        record::replace_file(&path, &format!("{text}\n"))?;
        Ok(path)
    }
}
