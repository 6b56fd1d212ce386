//! The ladder: every forward variant on the workload of the seed documents, in one table.

use std::collections::BTreeMap;
use std::fmt::Write;

use msdeform::{DType, DeviceKind, Direction, ValueLayout, VariantSpec};
use msdeform_cuda::variants::Variant;
use msdeform_cuda::{REGISTRY, registry};

use crate::counters::Profiled;
use crate::device::Timing;
use crate::device::named::{id_in, name_with};
use crate::overview::three_digits;
use crate::record::Record;
use crate::{Locations, Measurement};

/// The workload of the seed documents.
pub const WORKLOAD: &str = "seed";
/// The format of the seed documents.
pub const DTYPE: DType = DType::F16;
/// Without and with the border.
pub const LAYOUTS: [ValueLayout; 2] = [ValueLayout::HeadMajor, ValueLayout::HeadMajorPadded];
/// Spread out, and as trained models draw them.
pub const LOCATIONS: [Locations; 2] = [Locations::Uniform, Locations::Local];

/// What stands on the ladder: the forward variants, in the order of the registry.
pub fn variants() -> impl Iterator<Item = &'static VariantSpec> {
    forward().map(Variant::spec)
}

/// The names of what is timed: every variant as it sets itself up, and every setting of a rung's knobs.
#[must_use]
pub fn names() -> Vec<String> {
    let mut names = Vec::new();
    for variant in forward() {
        let id = variant.spec().id;
        names.push(id.to_owned());
        for knob in variant.knobs().iter().filter(|_| variant.spec().rung) {
            names.extend(knob.values.iter().map(|&value| name_with(id, knob.name, value)));
        }
    }
    names
}

fn forward() -> impl Iterator<Item = &'static dyn Variant> {
    let is_forward = |variant: &&dyn Variant| variant.spec().direction == Direction::Forward;
    REGISTRY.iter().copied().filter(is_forward)
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The variant's id, followed by the knobs that were set.
    pub name: String,
    /// What the registry says about it.
    pub spec: &'static VariantSpec,
    /// What the seed document says that it achieves.
    pub claim: Option<&'static str>,
    /// What was measured, by layout and locations.
    pub cells: BTreeMap<(String, String), Cell>,
}

/// One variant in one layout with one kind of locations.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Median time.
    pub us: f64,
    /// The same without the steps whose result another call could use again, where it has such steps.
    pub us_after_preparation: Option<f64>,
    /// By the seed documents' formula.
    pub tflop_per_s: f64,
    /// Against the `f64` reference.
    pub rel_l2: f64,
    /// Time of the original over this.
    pub speedup: Option<f64>,
    /// Sectors that were found in L1, in percent.
    pub l1_hit_percent: Option<f64>,
    /// Wavefronts that bank conflicts cost.
    pub bank_conflicts: Option<f64>,
}

impl Row {
    /// The cell of a layout and locations.
    #[must_use]
    pub fn cell(&self, layout: ValueLayout, locations: Locations) -> Option<&Cell> {
        self.cells.get(&(layout.name().to_owned(), locations.name().to_owned()))
    }
}

/// The table of one device's records, which come oldest first, and of what was profiled on it. A variant
/// that no record has gets no row.
#[must_use]
pub fn rows(records: &[Record], profiled: &[Profiled]) -> Vec<Row> {
    let mut newest: BTreeMap<(String, String, String), &Measurement> = BTreeMap::new();
    for measurement in records.iter().flat_map(|record| &record.measurements) {
        let label = &measurement.label;
        let is_ladder = label.workload == WORKLOAD
            && label.dtype == DTYPE.name()
            && label.direction == Direction::Forward.name()
            && measurement.timing == Timing::Events
            && measurement.mode == "warm_l2";
        if is_ladder {
            let key = (label.variant.clone(), label.layout.clone(), label.locations.clone());
            newest.insert(key, measurement);
        }
    }
    let original = registry::baseline(Direction::Forward).map_or("", |variant| variant.spec().id);
    let mut rows = Vec::new();
    for variant in forward() {
        let id = variant.spec().id;
        let mut of_variant: BTreeMap<&str, Row> = BTreeMap::new();
        for ((name, layout, locations), measurement) in &newest {
            if id_in(name) != id {
                continue;
            }
            let baseline = newest.get(&(original.to_owned(), layout.clone(), locations.clone()));
            let counters = profiled.iter().find(|p| p.label == measurement.label);
            let sum = |counter| {
                let kernels = &counters?.kernels;
                let found: Vec<f64> = kernels.iter().filter_map(|k| k.get(counter)).collect();
                (!found.is_empty()).then(|| found.iter().sum::<f64>())
            };
            let us = measurement.statistics.median_us;
            let cell = Cell {
                us,
                us_after_preparation: measurement.us_after_preparation,
                tflop_per_s: measurement.throughput.tflop_per_s,
                rel_l2: measurement.rel_l2,
                speedup: baseline.map(|baseline| baseline.statistics.median_us / us),
                // Of the step that gathers, which comes last.
                l1_hit_percent: counters
                    .and_then(|p| p.kernels.last())
                    .and_then(|kernel| kernel.get("l1_hit_percent")),
                bank_conflicts: sum("bank_conflicts"),
            };
            let row = of_variant.entry(name).or_insert_with(|| Row {
                name: name.clone(),
                spec: variant.spec(),
                claim: variant.claim(),
                cells: BTreeMap::new(),
            });
            row.cells.insert((layout.clone(), locations.clone()), cell);
        }
        rows.extend(of_variant.into_values());
    }
    rows
}

/// A number of a cell, or a dash.
fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".to_owned(), three_digits)
}

fn speedup(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}x"))
}

/// Thousands and millions by letter.
fn count(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 1e3 => format!("{value:.0}"),
        Some(value) if value < 1e6 => format!("{} k", three_digits(value * 1e-3)),
        Some(value) => format!("{} M", three_digits(value * 1e-6)),
    }
}

fn error(value: f64) -> String {
    if value.is_finite() { format!("{value:.1e}") } else { "-".to_owned() }
}

/// Headings of [`cells_of`].
pub const HEADINGS: [&str; 10] = [
    "rung",
    "source",
    "us uniform",
    "us local",
    "us local, border",
    "speed-up",
    "TFLOP/s",
    "L1 hit",
    "bank conflicts",
    "rel L2",
];

/// The cells of a row: times without the border but for one, the rest of the local locations.
#[must_use]
pub fn cells_of(row: &Row) -> [String; 10] {
    let [plain, bordered] = LAYOUTS;
    let [uniform, local] = LOCATIONS;
    let main = row.cell(plain, local);
    let time = |layout, locations| {
        let cell = row.cell(layout, locations);
        let after = cell.and_then(|cell| cell.us_after_preparation);
        let after = after.map_or_else(String::new, |us| format!(" ({})", three_digits(us)));
        format!("{}{after}", number(cell.map(|cell| cell.us)))
    };
    let worst = row.cells.values().map(|cell| cell.rel_l2).fold(0.0, f64::max);
    [
        row.name.clone(),
        row.spec.source.to_owned(),
        time(plain, uniform),
        time(plain, local),
        time(bordered, local),
        speedup(main.and_then(|cell| cell.speedup)),
        number(main.map(|cell| cell.tflop_per_s)),
        main.and_then(|c| c.l1_hit_percent).map_or_else(|| "-".to_owned(), |p| format!("{p:.0} %")),
        count(main.and_then(|cell| cell.bank_conflicts)),
        error(worst),
    ]
}

/// The whole table as Markdown, with the seed documents' claims in a last column if asked for. Names link
/// to their pages under `pages`.
#[must_use]
pub fn markdown(rows: &[Row], pages: &str, claims: bool) -> String {
    let mut out = format!("| {} |", HEADINGS.join(" | "));
    out.push_str(if claims { " the document says |\n" } else { "\n" });
    out.push_str("|---|---|");
    out.push_str(&"--:|".repeat(HEADINGS.len() - 2));
    out.push_str(if claims { "---|\n" } else { "\n" });
    for row in rows {
        let mut cells = cells_of(row);
        cells[0] = format!("[{}]({pages}{}.md)", row.name, row.spec.id);
        let claim = if claims { format!(" {} |", row.claim.unwrap_or("-")) } else { String::new() };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {} |{claim}", cells.join(" | "));
    }
    out
}

/// What the page of one variant says was measured: every setting of its knobs, layout and locations.
#[must_use]
pub fn page_markdown(rows: &[Row], id: &str) -> String {
    let of_variant: Vec<&Row> = rows.iter().filter(|row| row.spec.id == id).collect();
    if of_variant.is_empty() {
        return "Not measured yet.\n".to_owned();
    }
    let mut out = String::from(
        "| | layout | locations | us | after preparation | speed-up | TFLOP/s | L1 hit | bank conflicts | rel L2 |\n\
         |---|---|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in of_variant {
        for ((layout, locations), cell) in &row.cells {
            let _ = writeln!(
                out,
                "| {} | {layout} | {locations} | {} | {} | {} | {} | {} | {} | {} |",
                row.name,
                number(Some(cell.us)),
                number(cell.us_after_preparation),
                speedup(cell.speedup),
                number(Some(cell.tflop_per_s)),
                cell.l1_hit_percent.map_or_else(|| "-".to_owned(), |p| format!("{p:.0} %")),
                count(cell.bank_conflicts),
                error(cell.rel_l2),
            );
        }
    }
    out
}

/// The records of the GPU that was measured last.
#[must_use]
pub fn newest_gpu(records: &[Record]) -> Vec<Record> {
    let on_gpu = || records.iter().filter(|record| record.device.kind == DeviceKind::Cuda.name());
    let Some(slug) = on_gpu().next_back().map(|record| record.device.slug.clone()) else {
        return Vec::new();
    };
    on_gpu().filter(|record| record.device.slug == slug).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{KernelCounters, Reading};
    use crate::record::tests::record_of;

    fn measured(variant: &str, locations: &str, us: f64) -> Measurement {
        let mut measurement = record_of("2026-01-01T00:00:00Z", us).measurements[0].clone();
        let label = &mut measurement.label;
        WORKLOAD.clone_into(&mut label.workload);
        "f16".clone_into(&mut label.dtype);
        "head_major".clone_into(&mut label.layout);
        locations.clone_into(&mut label.locations);
        variant.clone_into(&mut label.variant);
        measurement.timing = Timing::Events;
        "warm_l2".clone_into(&mut measurement.mode);
        measurement
    }

    #[test]
    fn rungs_stand_in_the_order_of_the_registry_beside_their_counters() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        record.measurements = vec![
            measured("fwd_tile_gather", "local", 300.0),
            measured("fwd_simple:WARPS=4", "local", 1000.0),
            measured("fwd_original", "local", 2000.0),
            measured("fwd_simple", "uniform", 1100.0),
        ];
        let profiled = Profiled {
            label: record.measurements[1].label.clone(),
            kernels: vec![KernelCounters {
                kernel: "fwd_simple".to_owned(),
                launches: 1,
                readings: vec![
                    Reading { name: "l1_hit_percent".to_owned(), value: 81.2 },
                    Reading { name: "bank_conflicts".to_owned(), value: 2.5e6 },
                ],
            }],
        };
        let rows = rows(&[record], &[profiled]);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["fwd_original", "fwd_simple", "fwd_simple:WARPS=4", "fwd_tile_gather"]);
        let table = markdown(&rows, "docs/kernels/", true);
        assert!(table.contains("| - | 1000 | - | 2.00x |"), "{table}");
        assert!(table.contains("| 81 % | 2.50 M |") && table.contains("0.8 TFLOP/s"), "{table}");
        let page = page_markdown(&rows, "fwd_simple");
        assert_eq!(page.lines().count(), 4, "{page}");
        assert_eq!(page_markdown(&rows, "fwd_general"), "Not measured yet.\n");
    }

    #[test]
    fn other_workloads_formats_and_clocks_are_left_out() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        let mut by_graph = measured("fwd_simple", "local", 5.0);
        by_graph.timing = Timing::Graph;
        let mut other = measured("fwd_simple", "local", 5.0);
        other.label.dtype = "f32".to_owned();
        record.measurements = vec![by_graph, other];
        assert!(rows(&[record], &[]).is_empty());
    }
}
