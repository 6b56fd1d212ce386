use minijinja::context;
use minijinja::value::Serde;
use msdeform_lab::fixtures::record_of;
use msdeform_lab::record::newest;

use super::*;
use crate::render::render;
use crate::table::distinct;

const FORWARD: usize = 0;

fn text(template: &str, cases: &[Against]) -> String {
    let peers = distinct(cases.iter().flat_map(|case| &case.peers).map(|peer| &peer.peer));
    let values = context! { cases => Serde(cases), peers => Serde(&peers), peers_with_memory => Serde(&peers) };
    render(template, values).unwrap()
}

const COLUMNS: &str = "peer,workload,locations,dtype,forward_us,backward_us,forward_graph_us,backward_graph_us,\
    forward_runs,backward_runs,error_output,error_value,error_locations,error_locations_away,error_weights,\
    backward_memory_mib,run";

fn file(rows: &[&str]) -> String {
    format!("# a comment\n{COLUMNS}\n{}\n", rows.join("\n"))
}

const EXACT: &str = "a,ddetr_enc,local,f16,200,900,,,20,20,2e-4,2e-4,3e-1,2e-4,2e-4,120,1";
const HALF_COORDINATES: &str =
    "b,ddetr_enc,local,f16,100,400,,,20,20,2e-2,2e-2,3e-1,2e-1,2e-2,40,1";
const NAN_GRADIENT: &str = "c,ddetr_enc,local,f16,150,300,,,20,20,2e-4,2e-4,2e-4,2e-4,nan,,1";
const COMPARED: &str =
    "msdeform,ddetr_enc,local,f16,110,330,,,20,20,2e-4,2e-4,2e-4,2e-4,2e-4,300,1";

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
    let peers = parse(&file(&[EXACT, HALF_COORDINATES, NAN_GRADIENT])).unwrap();
    let cases = against(&figures(), &peers);
    let [case] = &cases[..] else { panic!("one case") };
    // Half coordinates are not exact, nor is NaN; a training step is both of one peer.
    assert_eq!(case.best_us, [150.0, 900.0, 1100.0].map(Some));
    assert!((case.ours_us[TRAINING] - 400.0).abs() < 1e-9, "the same sum");
    let table = text("PERFORMANCE.txt", &cases);
    assert!(table.contains("| 100 / 300 | 200 / 900 | (100) / (400) | 150 / (300) |"), "{table}");
}

#[test]
fn times_are_compared_by_the_same_clock() {
    let by_graph = "a,ddetr_enc,local,f16,200,900,20,90,20,20,2e-4,2e-4,3e-1,2e-4,2e-4,,1";
    let peers = parse(&file(&[by_graph])).unwrap();
    assert_eq!((peers[0].clock, peers[0].times[FORWARD].us), (Timing::Graph, 20.0));
    assert!(against(&figures(), &peers).is_empty(), "ours was timed by events alone");
}

#[test]
fn our_times_are_those_of_the_run_beside_the_peers_and_else_the_records() {
    let peers = parse(&file(&[EXACT, HALF_COORDINATES, NAN_GRADIENT, COMPARED])).unwrap();
    let cases = against(&figures(), &peers);
    let [case] = &cases[..] else { panic!("one case") };
    assert_eq!(case.peers.len(), 3, "ours is no peer");
    assert_eq!(case.ours_us, [110.0, 330.0, 440.0], "in the same case");
    for (ours, why) in [
        (COMPARED.replace("330,,,", "330,11,33,"), "by another clock"),
        (COMPARED.replace("2e-4,300", "nan,300"), "not exact"),
    ] {
        let peers = parse(&file(&[EXACT, &ours])).unwrap();
        let cases = against(&figures(), &peers);
        assert!((cases[0].ours_us[FORWARD] - 100.0).abs() < 1e-9, "{why}");
        assert_eq!(cases[0].ours_memory_mib, Some(300.0), "the memory is the same");
    }
}

#[test]
fn memory_is_compared_with_the_leanest_peer_that_computes_the_same() {
    let single = |row: &str| row.replace("f16", "f32").replace("e-4", "e-6");
    let rows = [EXACT, HALF_COORDINATES, NAN_GRADIENT, COMPARED].map(String::from);
    let mut all = rows.to_vec();
    all.extend(rows.iter().map(|row| single(row).replace("120,1", "60,1")));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let cases = against(&figures(), &parse(&file(&all)).unwrap());
    assert_eq!(cases[0].least_memory_mib, Some(60.0), "not the 40 of half coordinates");
    assert_eq!(cases[1].least_memory_mib, Some(120.0));
    let short = text("README.txt", &cases);
    assert!(short.contains("1.4x / 2.7x | 300 | 60 |"), "{short}");
    assert!(short.contains("1.4x to 1.4x as fast and our backward 2.7x to 2.7x. "), "{short}");
    assert!(short.contains("2.5x to 5.0x the memory"), "{short}");
    assert!(text("README.txt", &[]).contains("our forward is - as fast"));
}

#[test]
fn a_broken_file_is_named_by_its_line() {
    for (text, words) in [
        ("peer\nb\n".to_owned(), "line: 2"),
        (file(&["a,b"]), "line: 3"),
        (file(&["a,b,local,f17,1,1,,,1,1,1,1,1,1,1,,1"]), "a on b in f17: `f17`"),
        (file(&["a,b,local,f16,x,1,,,1,1,1,1,1,1,1,,1"]), "line: 3"),
        (file(&["a,b,local,f16,,1,,,1,1,1,1,1,1,1,,1"]), "time is missing"),
        (file(&["a,b,local,f16,1,1,,,1,1,1,1,1,1,1,,"]), "run is missing"),
        (file(&["a,b,local,f16,1,1,,,1,1,1,1,1,1,1"]), "line: 3"),
    ] {
        let message = format!("{:#}", parse(&text).unwrap_err());
        assert!(message.contains(words), "{message}");
    }
    assert!(parse("").unwrap().is_empty());
}

#[test]
fn the_readme_compares_eight_workloads_in_two_dtypes() {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let releases = crate::release::load_releases(&records).unwrap();
    let gpu = releases.iter().find(|record| record.device.slug == "h200").unwrap();
    let peers = load(&records, "h200").unwrap();
    let cases = against(&newest(std::slice::from_ref(gpu)), &peers);
    let table = text("README.txt", &cases);
    assert_eq!(table.matches("\n|").count(), 2 + 8, "{table}");
    // A peer or a time of ours that is missing.
    assert!(!table.contains("| - "), "{table}");
    for case in cases.iter().filter(|case| case.dtype == "f16") {
        let is_best = |peer: &&PeerRow| Some(peer.times[TRAINING].us) == case.best_us[TRAINING];
        // Most others pass coordinates through half precision.
        let best = case.peers.iter().find(is_best).unwrap();
        assert_eq!(best.peer, "deformops-triton", "{} {}", case.workload, case.locations);
        assert!(case.least_memory_mib.is_some(), "{} {}", case.workload, case.locations);
    }
}
