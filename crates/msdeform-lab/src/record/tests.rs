use super::*;
use crate::fixtures::{PUBLISHED_FIELDS, record_of};

#[test]
fn older_records_have_no_time_without_preparation() {
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
    for field in PUBLISHED_FIELDS {
        assert!(json.get(field).is_some(), "{field} is missing in {json}");
    }
    assert_eq!(json["timing"], "cpu");
}
