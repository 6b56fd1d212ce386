use msdeform_bench::fixtures::record_of;
use msdeform_bench::record::newest;

use super::*;

fn read(text: &str) -> Result<Vec<PeerRow>, PeerError> {
    parse(text, Path::new(FILE))
}

fn file(rows: &[&str]) -> String {
    format!("# a comment\n{COLUMNS}\n{}\n", rows.join("\n"))
}

const EXACT: &str = "a,ddetr_enc,local,f16,200,900,,,20,20,2e-4,2e-4,3e-1,2e-4,2e-4";
const HALF_COORDINATES: &str = "b,ddetr_enc,local,f16,100,400,,,20,20,2e-2,2e-2,3e-1,2e-1,2e-2";
const NAN_GRADIENT: &str = "c,ddetr_enc,local,f16,150,300,,,20,20,2e-4,2e-4,2e-4,2e-4,nan";

/// Ours: forward 100, backward 300.
fn figures() -> Vec<Figure> {
    let mut record = record_of("2026-01-01T00:00:00Z", 100.0);
    let measurement = &mut record.measurements[0];
    measurement.timing = Timing::Events;
    "warm_l2".clone_into(&mut measurement.mode);
    "f16".clone_into(&mut measurement.label.dtype);
    measurement.label.batch = workload::find("ddetr_enc").unwrap().batch;
    let mut backward = measurement.clone();
    "backward".clone_into(&mut backward.label.direction);
    backward.statistics.median_us = 300.0;
    record.measurements.push(backward);
    newest(&[record])
}

#[test]
fn the_best_exact_peer_is_the_fastest_whose_every_error_is_within_the_contract() {
    let peers = read(&file(&[EXACT, HALF_COORDINATES, NAN_GRADIENT])).unwrap();
    let cases = against(&figures(), &peers);
    let [case] = &cases[..] else { panic!("one case") };
    assert_eq!(case.best_exact(Quantity::Forward), Some(("c", 150.0)), "half coordinates are not");
    assert_eq!(case.best_exact(Quantity::Backward), Some(("a", 900.0)), "nor is NaN");
    assert_eq!(case.best_exact(Quantity::Training), Some(("a", 1100.0)), "both of one peer");
    assert!((case.ours_us(Quantity::Training) - 400.0).abs() < 1e-9, "the same sum");
    let table = every_peer(&cases);
    assert!(table.contains("| 100 / 300 | 200 / 900 | (100) / (400) | 150 / (300) |"), "{table}");
}

#[test]
fn times_are_compared_by_the_same_clock() {
    let by_graph = "a,ddetr_enc,local,f16,200,900,20,90,20,20,2e-4,2e-4,3e-1,2e-4,2e-4";
    let peers = read(&file(&[by_graph])).unwrap();
    assert_eq!((peers[0].clock, peers[0].time(Quantity::Forward).us), (Timing::Graph, 20.0));
    assert!(against(&figures(), &peers).is_empty(), "ours was timed by events alone");
}

#[test]
fn a_broken_file_is_named_by_its_line() {
    for (text, words) in [
        ("peer\n".to_owned(), "line 1"),
        (file(&["a,b"]), "too few"),
        (file(&["a,b,local,f17,1,1,,,1,1,1,1,1,1,1"]), "f17"),
        (file(&["a,b,local,f16,x,1,,,1,1,1,1,1,1,1"]), "`x`"),
        (file(&["a,b,local,f16,,1,,,1,1,1,1,1,1,1"]), "missing"),
    ] {
        let message = read(&text).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
    assert!(read("").unwrap().is_empty());
}

#[test]
fn the_readme_compares_eight_workloads_in_two_formats_with_peers_that_compute_the_same() {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let releases = crate::release::load_releases(&records).unwrap();
    let gpu = releases.iter().find(|record| record.device.slug == "h200").unwrap();
    let peers = load(&records, "h200").unwrap();
    let cases = against(&newest(std::slice::from_ref(gpu)), &peers);
    let table = short_table(&cases);
    assert_eq!(table.lines().count(), 2 + 8, "{table}");
    // A peer or a time of ours that is missing.
    assert!(!table.contains("| - "), "{table}");
    for case in cases.iter().filter(|case| case.dtype == DType::F16) {
        let (name, _) = case.best_exact(Quantity::Training).unwrap();
        // Others pass coordinates through half precision. The gradients of FlashDeformAttn's weights are numbers only
        // where locations are spread out.
        let is_local = case.locations == "local";
        let best = if is_local { "torch-ms-deform-attn" } else { "flash-deform-attn" };
        assert_eq!(name, best, "{} {}", case.workload, case.locations);
    }
}

#[test]
fn the_picture_names_everyone_and_cuts_what_is_too_long() {
    let slow = "grid_sample,ddetr_enc,local,f16,9000,90000,,,20,20,2e-4,2e-4,2e-4,2e-4,2e-4";
    let compiled = slow.replace("grid_sample", "grid_sample_compiled");
    let peers = read(&file(&[EXACT, NAN_GRADIENT, slow, &compiled])).unwrap();
    let cases = against(&figures(), &peers);
    for scheme in Scheme::ALL {
        let svg = picture(&cases[0], "a chip", scheme);
        assert!(svg.contains(">msdeform<") && svg.contains("PyTorch grid_sample"), "{svg}");
        assert!(!svg.contains("compiled") && svg.contains("ddetr_enc, f16, a chip"), "{svg}");
        assert_eq!(svg.matches("<path").count(), 3, "one cut in each panel");
        assert_eq!(svg.matches("not exact").count(), 2, "backward and training of c");
        assert!(svg.contains(">2.0\u{d7}<") && svg.contains(">90\u{d7}<"), "{svg}");
    }
}
