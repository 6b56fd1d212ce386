use msdeform_lab::counters::{KernelCounters, Reading};
use msdeform_lab::fixtures::{ceilings_of, record_of};

use super::*;

/// A case in two dtypes with a variant whose knobs were set and one that was only timed so, and a rung with a setting that it
/// has by itself.
fn record() -> Record {
    let mut record = record_of("2026-01-01T00:00:00Z", 812.0);
    record.device.name = "<script>alert(1)</script>".to_owned();
    (record.environment.msdeform, record.environment.rustc) = ("1.0".into(), "rustc".into());
    let first = record.measurements[0].clone();
    for (workload, dtype, variant, us) in [
        ("ddetr_enc", "f32", "fwd_test:WARPS=8", 700.0),
        ("ddetr_enc", "f32", "fwd_other:WARPS=4", 900.0),
        ("ddetr_enc", "f16", "fwd_test", 500.0),
        ("seed", "f16", "fwd_simple", 300.0),
        ("seed", "f16", "fwd_simple:WARPS=8", 301.0),
        ("seed", "f16", "fwd_simple:WARPS=4", 290.0),
    ] {
        let mut measured = first.clone();
        measured.label.workload = workload.to_owned();
        measured.label.dtype = dtype.to_owned();
        measured.label.variant = variant.to_owned();
        measured.statistics.median_us = us;
        measured.dispatched = variant == "fwd_test";
        record.measurements.push(measured);
    }
    record
}

/// Whose kernel has one counter of three that are drawn.
fn page() -> Page {
    let record = record();
    let reading = Reading { name: "l1_hit_percent".to_owned(), value: 81.25 };
    let counted = Counted {
        commit: String::new(),
        label: record.measurements[0].label.clone(),
        kernels: vec![KernelCounters {
            kernel: "fwd_test_step".to_owned(),
            launches: 3,
            readings: vec![reading],
        }],
    };
    Page::of(&[record], Some(&ceilings_of("test-chip-2c")), &[counted]).unwrap().unwrap()
}

#[test]
fn a_page_shows_the_numbers_of_the_record() {
    let html = html(&page()).unwrap();
    let (_, main) = html.split_once("<main>").unwrap();
    let (main, _) = main.split_once("</main>").unwrap();
    insta::assert_snapshot!("html", main);
    insta::assert_snapshot!("markdown", markdown(&page()).unwrap());
}

#[test]
fn a_page_needs_nothing_else_and_text_of_a_record_cannot_become_markup() {
    let html = html(&page()).unwrap();
    for outside in ["http://", "https://", "src=", "@import", "<script>alert"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn records_without_measurements_make_no_page() {
    let mut record = record();
    record.measurements.clear();
    assert!(Page::of(&[record], None, &[]).unwrap().is_none());
}
