use msdeform_lab::counters::{Counted, KernelCounters, Reading};
use msdeform_lab::fixtures::{ceilings_of, record_of};

use super::*;

fn page() -> Page {
    let record = record_of("2026-01-01T00:00:00Z", 812.0);
    let counted = Counted {
        commit: String::new(),
        label: record.measurements[0].label.clone(),
        kernels: vec![KernelCounters {
            kernel: "fwd_test_step".to_owned(),
            launches: 3,
            readings: vec![Reading { name: "l1_hit_percent".to_owned(), value: 81.25 }],
        }],
    };
    Page::of(&[record], Some(&ceilings_of("test-chip-2c")), &[counted]).unwrap()
}

#[test]
fn the_page_has_the_numbers_of_the_record_and_needs_nothing_else() {
    let html = html(&page());
    for text in
        ["Test Chip", "812 us", "fwd_test", "1.0e-6", "ddetr_enc", "1.0x", "fwd_test_step", "81.2"]
    {
        assert!(html.contains(text), "{text} is missing");
    }
    for outside in ["http://", "https://", "src=", "@import"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("data-key=\"812\""), "numbers sort as numbers");
    assert!(html.contains("L1 floor"));
    let first = |what: &str| html.find(what).unwrap_or(usize::MAX);
    assert!(first("class=\"headlines\"") < first("class=\"track\""), "figures, then bars");
    assert!(first("class=\"track\"") < first("<table"), "and tables last");
    assert_eq!(html.matches("<table").count(), html.matches("<div class=\"wide\"><table").count());
    assert!(html.contains("title=\"fwd_test_step, sectors found in L1: 81.2 %\""));
    assert!(!html.contains("lost to bank conflicts: "), "a share that was not read has no bar");
    assert!(!html.contains("id=\"roofline\""), "no half-precision time, no roofline");
}

#[test]
fn a_half_precision_forward_stands_under_the_roofline() {
    let mut record = record_of("2026-01-01T00:00:00Z", 812.0);
    record.measurements[0].label.dtype = "f16".to_owned();
    let ceilings = ceilings_of("test-chip-2c");
    let html = html(&Page::of(&[record], Some(&ceilings), &[]).unwrap());
    assert!(
        html.contains("id=\"roofline\"") && html.contains("ddetr_enc local interleaved: 812 us"),
        "{html}"
    );
    assert_eq!(html.matches("class=\"mark").count(), 2, "one for each kind of bytes");
    assert!(!html.contains("http://"), "a picture in a page names no one outside");
}

#[test]
fn markdown_has_the_same_numbers() {
    let markdown = markdown(&page());
    assert!(markdown.contains(
        "| ddetr_enc | 1 | 22223 | local | interleaved | forward | f32 | 812 us | 1.0x |"
    ));
    assert!(
        markdown.contains(
            "### ddetr_enc, forward in f32, local locations, interleaved, N=1, Lq=22223, 2 threads \
             (cpu, default)\n\n- fwd_test: 812 us (what a call gets)"
        ),
        "{markdown}"
    );
}

#[test]
fn text_of_a_record_cannot_become_markup() {
    let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
    record.device.name = "<script>alert(1)</script>".to_owned();
    let page = Page::of(&[record], None, &[]).unwrap();
    assert!(!html(&page).contains("<script>alert"));
    assert_eq!(
        page.times.table.rows[0].last().map(|cell| cell.text.as_str()),
        Some("-"),
        "no floor"
    );
}

#[test]
fn records_without_measurements_make_no_page() {
    let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
    record.measurements.clear();
    assert!(Page::of(&[record], None, &[]).is_none());
}

fn only_group(page: &Page) -> &Group {
    let [(_, groups)] = &page.groups[..] else { panic!("one workload") };
    let [group] = &groups[..] else { panic!("one case") };
    group
}

#[test]
fn settings_stand_on_the_bar_of_their_variant() {
    let mut record = record_of("2026-01-01T00:00:00Z", 812.0);
    for (variant, us) in [("fwd_test:WARPS=8", 700.0), ("fwd_other:WARPS=4", 900.0)] {
        let mut measured = record.measurements[0].clone();
        measured.label.variant = variant.to_owned();
        (measured.statistics.median_us, measured.dispatched) = (us, false);
        record.measurements.push(measured);
    }
    let page = Page::of(&[record], None, &[]).unwrap();
    let group = only_group(&page);
    let names: Vec<&str> = group.bars.iter().map(|bar| bar.name.as_str()).collect();
    assert_eq!(names, ["fwd_other:WARPS=4", "fwd_test"], "what has no bar of its own gets one");
    let [setting] = &group.bars[1].settings[..] else { panic!("one setting") };
    assert_eq!((group.bars[1].knobs(setting), setting.median_us), ("WARPS=8", 700.0));
    assert!(html(&page).contains("title=\"fwd_test WARPS=8: 700 us\""));
    assert!(markdown(&page).contains("what a call gets)\n  - WARPS=8: 700 us"));
}

#[test]
fn a_setting_that_a_rung_has_by_itself_is_shown_once() {
    let mut record = record_of("2026-01-01T00:00:00Z", 812.0);
    let label = &mut record.measurements[0].label;
    (label.workload, label.dtype) = ("seed".to_owned(), "f16".to_owned());
    label.variant = "fwd_simple".to_owned();
    let repeated = ladder::names().into_iter().find(|name| name.starts_with("fwd_simple:"));
    let other = repeated.unwrap();
    // One of the two is what it sets itself.
    let own = if other.ends_with("WARPS=4") { "fwd_simple:WARPS=8" } else { "fwd_simple:WARPS=4" };
    for variant in [own, &other] {
        let mut measured = record.measurements[0].clone();
        measured.label.variant = variant.to_owned();
        record.measurements.push(measured);
    }
    let page = Page::of(&[record], None, &[]).unwrap();
    let bar = &only_group(&page).bars[0];
    let settings: Vec<&str> = bar.settings.iter().map(|setting| bar.knobs(setting)).collect();
    assert_eq!(settings, [other.trim_start_matches("fwd_simple:")]);
}
