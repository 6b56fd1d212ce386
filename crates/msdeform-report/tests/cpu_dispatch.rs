//! What dispatch chooses on a CPU is the fastest instruction set, and clearly faster than plain Rust: on every machine that has
//! a record, for all workloads and dtypes.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use msdeform_lab::{Measurement, Record};

/// The most that the dispatched variant may take of the time of any other one.
const OF_THE_BEST: f64 = 1.05;
/// The least that the baseline takes of the time of the dispatched variant.
const OF_THE_BASELINE: f64 = 1.5;
/// The most of a median that its spread counts for. A noisy record must not excuse everything.
const MOST_NOISE: f64 = 0.05;

/// Records of the time when only the dispatched variant was timed in each dtype, and the baseline in `f32`.
const WITHOUT_ALL_SETS: [&str; 2] =
    ["epyc-genoa-2c 2026-11-18T03:43:54Z", "xeon-emerald-rapids-2c 2026-11-18T07:25:08Z"];

/// Cases that were too slow when they were recorded, and have been improved since. A newer record of the machine replaces
/// these lines.
const SLOW_WHEN_RECORDED: [&str; 1] =
    ["epyc-genoa-2c 2026-11-18T03:43:54Z m2f_enc local interleaved f32 forward"];

/// A measured time with its spread: half of the samples lie within.
fn bounds(measurement: &Measurement) -> (f64, f64) {
    let (median, spread) = (measurement.statistics.median_us, measurement.statistics.mad_us);
    let noise = spread.min(MOST_NOISE * median);
    (median - noise, median + noise)
}

fn title(record: &Record) -> String {
    format!("{} {}", record.device.slug, record.date)
}

/// The variants of a record by case: the same tensors, threads, clock and mode.
fn cases(record: &Record) -> BTreeMap<String, Vec<&Measurement>> {
    let mut cases: BTreeMap<String, Vec<&Measurement>> = BTreeMap::new();
    for measurement in &record.measurements {
        let label = &measurement.label;
        let words =
            [&label.workload, &label.locations, &label.layout, &label.dtype, &label.direction];
        let case = words.map(String::as_str).join(" ");
        // Sizes and threads last: a record has one of each for nearly all cases.
        let sizes = (label.batch, label.queries, measurement.threads);
        let key = format!("{case}|{sizes:?} {:?} {}", measurement.timing, measurement.mode);
        cases.entry(key).or_default().push(measurement);
    }
    cases
}

/// What is wrong with a record's choices: the case, and why.
fn faults(record: &Record) -> Vec<(String, String)> {
    let sets = record.device.facts.get("instruction_sets").map_or("", String::as_str);
    let mut faults = Vec::new();
    for (key, variants) in cases(record) {
        let name = key.split('|').next().unwrap();
        let mut fault = |text: String| faults.push((format!("{} {name}", title(record)), text));
        let Some(dispatched) = variants.iter().find(|variant| variant.dispatched) else {
            fault("the dispatched variant was not timed".into());
            continue;
        };
        let (least, id) = (bounds(dispatched).0, &dispatched.label.variant);
        for other in &variants {
            let most = bounds(other).1;
            let ratio = other.statistics.median_us / dispatched.statistics.median_us;
            let other = &other.label.variant;
            if most * OF_THE_BEST < least {
                fault(format!("{id} is chosen, but {other} takes {ratio:.2} of its time"));
            }
        }
        let of_baseline = variants.iter().find(|variant| variant.is_baseline);
        if let Some(baseline) = of_baseline.filter(|baseline| !baseline.dispatched)
            && bounds(baseline).1 < OF_THE_BASELINE * least
        {
            let ratio = baseline.statistics.median_us / dispatched.statistics.median_us;
            fault(format!("{id} is only {ratio:.2} times as fast as the baseline"));
        }
        if !WITHOUT_ALL_SETS.contains(&title(record).as_str()) {
            let is_timed = |set: &&str| {
                variants.iter().any(|variant| variant.label.variant.ends_with(&format!("_{set}")))
            };
            for set in sets.split(' ').filter(|set| !is_timed(set)) {
                fault(format!("the machine has {set}, whose variant was not timed"));
            }
        }
    }
    faults
}

/// Read once: they are large.
static CPU_RECORDS: LazyLock<Vec<Record>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let mut records = msdeform_lab::record::load_all(&folder).unwrap();
    records.retain(|record| record.device.kind == "cpu");
    records
});

#[test]
fn the_dispatched_variant_is_the_fastest_on_every_recorded_cpu() {
    let mut unexpected = Vec::new();
    let mut known = Vec::new();
    for (case, text) in CPU_RECORDS.iter().flat_map(faults) {
        if SLOW_WHEN_RECORDED.contains(&case.as_str()) {
            known.push(case);
        } else {
            unexpected.push(format!("{case}: {text}"));
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    assert_eq!(known, SLOW_WHEN_RECORDED, "a case in the list is fast now: take it out");
    let titles: Vec<String> = CPU_RECORDS.iter().map(title).collect();
    let gone = WITHOUT_ALL_SETS.into_iter().filter(|old| !titles.iter().any(|title| title == old));
    assert_eq!(gone.collect::<Vec<_>>(), [""; 0], "a record in the list is gone: take it out");
}

/// A record with one case in which every variant takes a given time, and no spread.
fn record_of(times_us: [f64; 3], spread_us: f64) -> Record {
    let mut record = CPU_RECORDS[0].clone();
    record.device.facts.insert("instruction_sets".into(), "scalar avx2 avx512".into());
    record.date = "2026-12-01T00:00:00Z".into();
    let model = record.measurements[0].clone();
    let sets = ["scalar", "avx2", "avx512"].into_iter().zip(times_us);
    record.measurements = sets
        .map(|(set, median_us)| {
            let mut measurement = model.clone();
            measurement.label.variant = format!("fwd_cpu_{set}");
            measurement.statistics.median_us = median_us;
            measurement.statistics.mad_us = spread_us;
            measurement.dispatched = set == "avx512";
            measurement.is_baseline = set == "scalar";
            measurement
        })
        .collect();
    record
}

#[test]
fn slow_choices_and_missing_times_are_found() {
    let texts = |record: &Record| -> Vec<String> {
        faults(record).into_iter().map(|(_, text)| text).collect()
    };
    let none = Vec::<String>::new();
    assert_eq!(texts(&record_of([160.0, 98.0, 100.0], 0.0)), none);
    assert_eq!(
        texts(&record_of([160.0, 94.0, 100.0], 0.0)),
        ["fwd_cpu_avx512 is chosen, but fwd_cpu_avx2 takes 0.94 of its time"]
    );
    assert_eq!(
        texts(&record_of([140.0, 120.0, 100.0], 0.0)),
        ["fwd_cpu_avx512 is only 1.40 times as fast as the baseline"]
    );
    // Both within their spread, and spreads that are larger than what counts.
    assert_eq!(texts(&record_of([147.0, 94.0, 100.0], 1.5)), none);
    assert_eq!(texts(&record_of([100.0, 80.0, 100.0], 90.0)).len(), 2);
    let mut record = record_of([160.0, 98.0, 100.0], 0.0);
    record.measurements.remove(1);
    assert_eq!(texts(&record), ["the machine has avx2, whose variant was not timed"]);
    record.measurements.retain(|measurement| !measurement.dispatched);
    assert_eq!(texts(&record), ["the dispatched variant was not timed"]);
}
