use super::*;
use crate::case::Label;
use crate::device::Timing;
use crate::{Statistics, Work};
use std::path::Path;

/// A record of one measurement, for tests of what is made from records.
pub(crate) fn record_of(date: &str, median_us: f64) -> Record {
    let work =
        Work { samples: 1000, operations: 16_000, gathered_bytes: 4000, compulsory_bytes: 500 };
    let samples_us = vec![median_us * 0.5, median_us, median_us * 2.0];
    Record {
        schema: SCHEMA,
        date: date.to_owned(),
        provenance: Provenance {
            commit: "0123456789abcdef".into(),
            dirty: false,
            command: "msdeform bench".into(),
        },
        device: DeviceRecord {
            slug: "test-chip-2c".into(),
            kind: "cpu".into(),
            name: "Test Chip, 2 cores".into(),
            facts: BTreeMap::from([("clock_mhz".into(), "3000".into())]),
            bandwidth: Some(Bandwidth {
                copy_gb_per_s: 20.0,
                buffer_bytes: 64 << 20,
                threads: 2,
                in_cache: false,
            }),
        },
        environment: Environment::now(),
        seed: STANDARD_SEED,
        runs: Vec::new(),
        measurements: vec![Measurement {
            label: Label {
                workload: "ddetr_enc".into(),
                locations: "local".into(),
                layout: "interleaved".into(),
                dtype: "f32".into(),
                direction: "forward".into(),
                variant: "fwd_test".into(),
                batch: 1,
                queries: 22_223,
            },
            mode: "default".into(),
            timing: Timing::Cpu,
            threads: Some(2),
            statistics: Statistics::of(&samples_us).unwrap(),
            work,
            workspace_bytes: 0,
            rel_l2: 1e-6,
            us_after_preparation: None,
            dispatched: true,
            is_baseline: true,
            run: 0,
            samples_us,
        }],
        verification: Report::default(),
        unfinished_cases: 0,
    }
}

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
        "nothing is left beside the two files"
    );
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_time_without_preparation_is_optional_and_older_records_have_none() {
    let mut measurement = record_of("2026-02-03T04:05:06Z", 800.0).measurements.remove(0);
    let older = serde_json::to_value(&measurement).unwrap();
    assert!(older.get("us_after_preparation").is_none());
    let read: Measurement = serde_json::from_value(older).unwrap();
    assert_eq!(read.us_after_preparation, None);
    measurement.us_after_preparation = Some(640.5);
    let newer = serde_json::to_value(&measurement).unwrap();
    let read: Measurement = serde_json::from_value(newer).unwrap();
    assert_eq!(read.us_after_preparation, Some(640.5));
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
    assert_eq!(names, ["2026-02-03-012345678", "2026-02-03-012345678-2", "2026-02-03-012345678-3"]);
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

#[test]
fn figures_are_the_newest_of_each_combination() {
    let mut other = record_of("2026-01-03T00:00:00Z", 5.0);
    other.measurements[0].label.dtype = "f16".into();
    let records =
        [record_of("2026-01-01T00:00:00Z", 3.0), record_of("2026-01-02T00:00:00Z", 4.0), other];
    let figures = newest(&records);
    let medians: Vec<(&str, f64)> =
        figures.iter().map(|figure| (figure.dtype.as_str(), figure.median_us)).collect();
    assert_eq!(medians, [("f32", 4.0), ("f16", 5.0)]);
}

#[test]
fn figures_have_the_published_field_names() {
    let figures = newest(&[record_of("2026-01-01T00:00:00Z", 3.0)]);
    let json = serde_json::to_value(&figures[0]).unwrap();
    for field in [
        "device",
        "workload",
        "locations",
        "layout",
        "dtype",
        "direction",
        "mode",
        "variant",
        "timing",
        "threads",
        "median_us",
        "mad_us",
        "rel_l2",
        "commit",
    ] {
        assert!(json.get(field).is_some(), "{field} is missing in {json}");
    }
    assert_eq!(json["timing"], "cpu");
}

#[test]
fn a_figure_without_a_verified_error_is_in_no_overview() {
    let mut record = record_of("2026-01-01T00:00:00Z", 3.0);
    let rows = |record: &Record| crate::overview::overview(&newest(std::slice::from_ref(record)));
    assert_eq!(rows(&record).len(), 1);
    for bad in [f64::NAN, 1e-3] {
        record.measurements[0].rel_l2 = bad;
        assert!(rows(&record).is_empty(), "{bad}");
    }
}
