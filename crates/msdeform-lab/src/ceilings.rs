//! What a device can do at best, measured, and the least time that implies for a call.

use std::path::{Path, PathBuf};

use crate::{Ceiling, Device, Work};
use msdeform::{Direction, Problem};
use serde::{Deserialize, Serialize};

use crate::record::{self, DeviceRecord, Environment, Provenance, RecordError, SCHEMA};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub name: String,
    pub works: bool,
    /// What was seen, or why the driver refused.
    pub outcome: String,
}

/// The ceilings of one device: `records/<device>/ceilings.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ceilings {
    pub schema: u32,
    pub date: String,
    #[serde(flatten)]
    pub provenance: Provenance,
    pub device: DeviceRecord,
    pub environment: Environment,
    pub ceilings: Vec<Ceiling>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<Capability>,
}

const FILE: &str = "ceilings.json";

impl Ceilings {
    pub fn new(device: &dyn Device, ceilings: Vec<Ceiling>, capabilities: Vec<Capability>) -> Self {
        Self {
            schema: SCHEMA,
            date: record::now(),
            provenance: Provenance::now(),
            device: DeviceRecord::of(device, None),
            environment: Environment::now(),
            ceilings,
            capabilities,
        }
    }

    pub fn ceiling(&self, name: &str) -> Option<f64> {
        self.ceilings.iter().find(|ceiling| ceiling.name == name).map(|ceiling| ceiling.value)
    }

    /// Writes it below the folder of all records, in place of an older one, whole or not at all.
    pub fn write(&self, records: &Path) -> Result<PathBuf, RecordError> {
        record::write(records.join(&self.device.slug).join(FILE), self)
    }

    /// Those of every device below the folder of all records.
    /// [`RecordError`] naming the file: a broken file is not passed over.
    pub fn load_all(records: &Path) -> Result<Vec<Self>, RecordError> {
        record::read_in_folders(records, FILE)
    }
}

/// The least time that each ceiling leaves for a forward call, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Floors {
    /// Every gathered byte through the L1 data path once, all of them hits without bank conflicts.
    pub l1_us: f64,
    /// No gathered byte found in L1: what reuse in L1 is measured against, not a floor.
    pub without_l1_us: f64,
    /// Every input read from DRAM once, every output written once. A call whose tensors stay in L2
    /// from the run before can be faster.
    pub dram_us: f64,
}

impl Floors {
    /// The floors of a call on a device with these ceilings, where they were measured.
    pub fn of(problem: &Problem, ceilings: &Ceilings) -> Option<Self> {
        let work = Work::of(problem, Direction::Forward);
        // GB/s are bytes per nanosecond.
        let us = |bytes: u64, gb_per_s: f64| bytes as f64 / gb_per_s * 1e-3;
        Some(Self {
            l1_us: us(work.gathered_bytes, ceilings.ceiling("l1_gather_line")?),
            without_l1_us: us(work.gathered_bytes, ceilings.ceiling("l2_gather_line")?),
            dram_us: us(work.compulsory_bytes, ceilings.ceiling("dram_copy")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::{self, Sizes};
    use msdeform::{DType, ValueLayout};

    use super::*;
    use crate::fixtures::ceilings_of;

    #[test]
    fn the_seed_workload_has_the_floors_of_the_design() {
        let seed = workload::find("seed").unwrap();
        let problem = seed.problem(DType::F16, ValueLayout::HeadMajor, Sizes::default()).unwrap();
        let floors = Floors::of(&problem, &ceilings_of("x")).unwrap();
        assert!((floors.l1_us - 187.0).abs() < 1.0, "{floors:?}");
        assert!((floors.dram_us - 52.0).abs() < 1.5, "{floors:?}");
        assert!((floors.without_l1_us - 537.0).abs() < 2.0, "{floors:?}");
    }

    #[test]
    fn ceilings_survive_the_disk_and_replace_those_before() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Ceilings::load_all(folder.path()).unwrap().is_empty());
        for value in [1.0, 2.0] {
            let mut ceilings = ceilings_of("h200");
            ceilings.ceilings[0].value = value;
            ceilings.write(folder.path()).unwrap();
        }
        let read = Ceilings::load_all(folder.path()).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].ceiling("l1_gather_line"), Some(2.0));
        assert_eq!(read[0].ceiling("unheard_of"), None);
        std::fs::write(folder.path().join("h200").join(FILE), "{}").unwrap();
        assert!(Ceilings::load_all(folder.path()).is_err(), "a broken file is an error");
    }
}
