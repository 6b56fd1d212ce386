//! Records into their folders: `records/<device>/<date>-<revision>/{record.json, summary.md}`.

use std::path::{Path, PathBuf};

use msdeform_files::{Existing, FolderInTheMaking, sealed};
use msdeform_lab::record::{self, FILE, replace_file, to_json};
use msdeform_lab::{Record, RecordError};

use crate::budget::within_budget;
use crate::summary;

const SUMMARY: &str = "summary.md";
const MOST_PER_DAY: u32 = 1000;

/// A record that grows: its folder appears with the first case and is written again after every other.
#[derive(Debug)]
pub struct RecordFolder {
    root: PathBuf,
    path: Option<PathBuf>,
}

impl RecordFolder {
    /// Below `root`, where [`write()`] would put it. Nothing is there yet.
    pub fn new(root: PathBuf) -> Self {
        Self { root, path: None }
    }

    /// Writes what there is of the record, each file whole or as it was.
    pub fn save(&mut self, record: &Record) -> Result<(), RecordError> {
        let Some(path) = &self.path else {
            self.path = Some(write(record, &self.root)?);
            return Ok(());
        };
        let kept = within_budget(record);
        replace_file(&path.join(FILE), &to_json(&kept)?)?;
        msdeform_files::write(&path.join(SUMMARY), summary(&kept)?.as_bytes(), Existing::Replace)?;
        Ok(())
    }

    /// Where it is, once something was saved.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// Writes a record into a folder of its own and returns that. The folder appears complete or not
/// at all, and never replaces another: further records of a commit and day get a number.
pub fn write(record: &Record, root: &Path) -> Result<PathBuf, RecordError> {
    let device_folder = root.join(&record.device.slug);
    let mut pending = FolderInTheMaking::new(&device_folder)?;
    // A run that was killed left its temporaries in its own record.
    for earlier in record::folders(&device_folder)? {
        msdeform_files::sweep(&earlier);
    }
    let kept = within_budget(record);
    pending.add(FILE, sealed(&to_json(&kept)?).as_bytes())?;
    pending.add(SUMMARY, summary(&kept)?.as_bytes())?;

    let date = record.date.get(..10).unwrap_or(&record.date);
    let name = format!("{date}-{}", record.provenance.revision());
    for number in 1..MOST_PER_DAY {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let target = device_folder.join(format!("{name}{suffix}"));
        pending = match pending.place(&target)? {
            None => return Ok(target),
            Some(pending) => pending,
        };
    }
    Err(RecordError::NoFreeName { path: device_folder })
}

#[cfg(test)]
mod tests {
    use msdeform_lab::fixtures::record_of;
    use msdeform_lab::record::{load_all, load_one};

    use super::*;

    #[test]
    fn a_record_that_grows_is_whole_after_every_case_and_stays_in_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = RecordFolder::new(root.path().to_owned());
        assert_eq!(folder.path(), None);
        let mut record = record_of("2026-02-03T04:05:06Z", 800.0);
        record.unfinished_cases = 1;
        folder.save(&record).unwrap();
        let path = folder.path().unwrap().to_owned();
        assert_eq!(load_one(&path).unwrap().unfinished_cases, 1);
        let summary = || std::fs::read_to_string(path.join("summary.md")).unwrap();
        assert!(summary().contains("cases not timed: 1"), "{}", summary());

        record.measurements.extend(record_of("2026-02-03T04:05:06Z", 900.0).measurements);
        record.unfinished_cases = 0;
        folder.save(&record).unwrap();
        assert_eq!(folder.path(), Some(path.as_path()));
        let whole = load_one(&path).unwrap();
        assert_eq!((whole.measurements.len(), whole.unfinished_cases), (2, 0));
        assert!(!summary().contains("Broken off"), "{}", summary());
        assert_eq!(
            std::fs::read_dir(&path).unwrap().count(),
            2,
            "nothing is left next to the two files"
        );
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_record_comes_back_as_it_was_written_and_has_a_summary() {
        let root = tempfile::tempdir().unwrap();
        let folder = write(&record_of("2026-02-03T04:05:06Z", 800.0), root.path()).unwrap();
        assert_eq!(folder, root.path().join("test-chip-2c/2026-02-03-012345678"));
        let records = load_all(root.path()).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].measurements[0].samples_us, [400.0, 800.0, 1600.0]);
        assert_eq!(records[0].device.facts["clock_mhz"], "3000");
        let summary = std::fs::read_to_string(folder.join("summary.md")).unwrap();
        assert!(summary.contains("Test Chip") && summary.contains("800 us"), "{summary}");
        let json = std::fs::read_to_string(folder.join("record.json")).unwrap();
        assert!(json.contains("\"samples_us\": [400.0, 800.0, 1600.0]"), "{json}");
    }

    #[test]
    fn a_second_record_of_a_commit_and_day_gets_a_number_and_nothing_is_left_behind() {
        let root = tempfile::tempdir().unwrap();
        let record = record_of("2026-02-03T04:05:06Z", 800.0);
        let names: Vec<String> = (0..3)
            .map(|_| write(&record, root.path()).unwrap())
            .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            ["2026-02-03-012345678", "2026-02-03-012345678-2", "2026-02-03-012345678-3"]
        );
        let entries = std::fs::read_dir(root.path().join("test-chip-2c")).unwrap().count();
        assert_eq!(entries, 3, "no temporary folder remains");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let root = tempfile::NamedTempFile::new().unwrap();
        let error = write(&record_of("2026-02-03T04:05:06Z", 1.0), root.path()).unwrap_err();
        assert!(error.to_string().contains("test-chip-2c"), "{error}");
    }

    #[test]
    fn a_broken_or_foreign_record_is_an_error_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let folder = write(&record_of("2026-02-03T04:05:06Z", 1.0), root.path()).unwrap();
        let file = folder.join("record.json");
        for (text, expected) in [
            ("{", "is not a record"),
            ("{\"schema\": 1}", "is not a record"),
            ("{\"schema\": 99}", "format 99"),
        ] {
            std::fs::write(&file, text).unwrap();
            let message = load_all(root.path()).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("record.json"), "{message}");
        }
        assert!(load_all(Path::new("/no/such/folder")).is_err());
    }
}
