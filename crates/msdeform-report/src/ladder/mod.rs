//! The ladder: every forward variant on the workload of the seed documents, in one table.

mod settings;
mod story;

use std::collections::BTreeMap;

use minijinja::context;
use minijinja::value::Serde;
use msdeform::{DType, Direction, ValueLayout, VariantSpec};
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::{REGISTRY, claim};
use msdeform_lab::counters::{Counted, KernelCounters};
use msdeform_lab::device::Timing;
use msdeform_lab::device::named::{KNOB_SEPARATOR, id_in};
use msdeform_lab::record::Record;
use msdeform_lab::workload::Label;
use msdeform_lab::{Locations, Measurement, RecordError};
use serde::Serialize;

use crate::render::render;
use crate::table::Table;

pub use settings::names;
pub(crate) use settings::own_name;
pub(crate) use story::{STOPS, pictures};

/// The workload of the seed documents.
pub const WORKLOAD: &str = "seed";
/// The dtype of the seed documents.
pub const DTYPE: DType = DType::F16;
/// Without and with the border.
pub const LAYOUTS: [ValueLayout; 2] = [ValueLayout::HeadMajor, ValueLayout::HeadMajorPadded];
/// Spread out, and as trained models draw them.
pub const LOCATIONS: [Locations; 2] = [Locations::Uniform, Locations::Local];

/// The forward variants, in the order of the registry.
pub(crate) fn variants() -> impl Iterator<Item = &'static VariantSpec> {
    forward().map(|variant| variant.spec)
}

fn forward() -> impl Iterator<Item = &'static Variant> {
    let is_forward = |variant: &&Variant| variant.spec.direction == Direction::Forward;
    REGISTRY.iter().copied().filter(is_forward)
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The variant's id, followed by the knobs that were set.
    name: String,
    id: &'static str,
    origin: &'static str,
    /// The document that the origin names, what it claims, and what it calls the rung unless the id says so.
    document: &'static str,
    claim: String,
    /// The knobs that a row sets otherwise than its variant does.
    setting: Option<String>,
    /// The largest error of any cell; none if one is no number.
    worst_error: Option<f64>,
    /// What was measured, by layout and locations: `head_major_local`.
    cells: BTreeMap<String, Cell>,
}

/// One variant in one layout with one kind of locations.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    us: f64,
    us_after_preparation: Option<f64>,
    /// Time of the original over this.
    speedup: Option<f64>,
    tflop_per_s: f64,
    /// Wavefronts that bank conflicts cost, in all steps.
    bank_conflicts: Option<f64>,
    /// Of the step that gathers, which comes last.
    counters: BTreeMap<String, f64>,
    kernels: Vec<Kernel>,
}

/// A kernel of a case, with its counters by name.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) label: Label,
    pub(crate) counters: BTreeMap<String, f64>,
}

/// The kernels that were counted, each once for every case.
pub(crate) fn kernels<'a>(
    counted: impl IntoIterator<Item = &'a Counted>,
) -> impl Iterator<Item = Kernel> {
    let kernel = |label: &Label, kernel: &KernelCounters| {
        let read = kernel.readings.iter().map(|reading| (reading.name.clone(), reading.value));
        let conflicts = kernel.conflict_percent().map(|share| ("conflict_percent".into(), share));
        let counters = read.chain(conflicts).collect();
        Kernel { name: kernel.kernel.clone(), label: label.clone(), counters }
    };
    counted.into_iter().flat_map(move |counted| {
        let of_case: Vec<_> = counted.kernels.iter().map(|k| kernel(&counted.label, k)).collect();
        of_case
    })
}

impl Row {
    fn new(name: String, spec: &'static VariantSpec) -> Self {
        let VariantSpec { id, origin, .. } = *spec;
        let (document, called) = origin.split_once(": ").unwrap_or((origin, ""));
        let claim = match claim(id).filter(|_| name == id) {
            Some(claim) if id.ends_with(&called.replace(' ', "_")) => claim.to_owned(),
            Some(claim) => format!("{called}: {claim}"),
            None => String::new(),
        };
        let setting = name.strip_prefix(id).and_then(|rest| rest.strip_prefix(KNOB_SEPARATOR));
        let setting = setting.map(str::to_owned);
        let (worst_error, cells) = (Some(0.0), BTreeMap::new());
        Self { name, id, origin, document, claim, setting, worst_error, cells }
    }

    fn add(&mut self, measurement: &Measurement, record: &Record, counted: &[Counted]) {
        let label = &measurement.label;
        let kernels: Vec<_> = kernels(counted.iter().find(|found| found.label == *label)).collect();
        let conflicts = kernels.iter().filter_map(|kernel| kernel.counters.get("bank_conflicts"));
        let cell = Cell {
            us: measurement.statistics.median_us,
            us_after_preparation: measurement.us_after_preparation,
            speedup: measurement.speedup_among(&record.measurements),
            tflop_per_s: measurement.throughput().tflop_per_s,
            bank_conflicts: conflicts.copied().reduce(|a, b| a + b),
            counters: kernels.last().map(|last| last.counters.clone()).unwrap_or_default(),
            kernels,
        };
        self.cells.insert(format!("{}_{}", label.layout, label.locations), cell);
        let error = Some(measurement.rel_l2).filter(|error| error.is_finite());
        self.worst_error = self.worst_error.zip(error).map(|(worst, error)| worst.max(error));
    }
}

/// The table of a record, and of what was counted on its device. A setting that a variant has by itself
/// (`fwd_simple:WARPS=8`) stands for the variant where the record did not time it by its plain name.
pub fn rows(record: &Record, counted: &[Counted]) -> Vec<Row> {
    let of_ladder = record.measurements.iter().filter(|measurement| is_of_ladder(measurement));
    let (plain, renamed): (Vec<_>, Vec<_>) = of_ladder
        .map(|measurement| (own_name(&measurement.label.variant), measurement))
        .partition(|(name, measurement)| *name == measurement.label.variant);
    let mut rows: BTreeMap<(usize, String), Row> = BTreeMap::new();
    // The plain name is inserted last and stays.
    for (name, measurement) in renamed.into_iter().chain(plain) {
        let mut specs = variants().enumerate();
        let Some((place, spec)) = specs.find(|(_, spec)| spec.id == id_in(&name)) else { continue };
        let row = rows.entry((place, name.clone())).or_insert_with(|| Row::new(name, spec));
        row.add(measurement, record, counted);
    }
    rows.into_values().collect()
}

/// A line of `bench --ladder` for each row: times without the border but for one, the rest of the local locations.
pub fn table(rows: &[Row]) -> Result<Table, RecordError> {
    Ok(Table::parse(&render("bench-ladder.txt", context! { rungs => Serde(rows) })?))
}

fn is_of_ladder(measurement: &Measurement) -> bool {
    let label = &measurement.label;
    label.workload == WORKLOAD
        && label.dtype == DTYPE.name()
        && label.direction == Direction::Forward.name()
        && measurement.timing == Timing::Events
        && measurement.mode == "warm_l2"
}

#[cfg(test)]
mod tests {
    use msdeform_lab::counters::{KernelCounters, Reading};
    use msdeform_lab::fixtures::record_of;

    use super::*;

    fn measured(variant: &str, locations: &str, us: f64) -> Measurement {
        let mut measurement = record_of("2026-01-01T00:00:00Z", us).measurements[0].clone();
        let label = &mut measurement.label;
        WORKLOAD.clone_into(&mut label.workload);
        "f16".clone_into(&mut label.dtype);
        "head_major".clone_into(&mut label.layout);
        locations.clone_into(&mut label.locations);
        variant.clone_into(&mut label.variant);
        measurement.is_baseline = variant == "fwd_original";
        measurement.timing = Timing::Events;
        "warm_l2".clone_into(&mut measurement.mode);
        measurement
    }

    #[test]
    fn rungs_follow_the_registry_and_missing_counters_are_dashes() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        record.measurements = vec![
            measured("fwd_tile_gather", "local", 300.0),
            measured("fwd_simple:WARPS=4", "local", 1000.0),
            measured("fwd_original", "local", 2000.0),
            measured("fwd_simple", "uniform", 1100.0),
        ];
        let readings = vec![Reading { name: "bank_conflicts".to_owned(), value: 2.5e6 }];
        let kernel = KernelCounters { kernel: "fwd_simple".to_owned(), launches: 1, readings };
        let label = record.measurements[1].label.clone();
        let counted = Counted { commit: String::new(), label, kernels: vec![kernel] };
        let rows = rows(&record, &[counted]);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["fwd_original", "fwd_simple", "fwd_simple:WARPS=4", "fwd_tile_gather"]);
        let page = |id: &str| {
            let values = context! { id, rungs => Serde(&rows) };
            render("kernel.txt", values).unwrap()
        };
        let of_other = page("fwd_general");
        assert_eq!(of_other, "<!-- measured:begin -->\nNot measured yet.\n<!-- measured:end -->");
        let page = page("fwd_simple");
        assert!(page.contains("| WARPS=4 | 1000 | - | - | - | 2.00x | - |"), "{page}");
        let line = "| WARPS=4 | - | - | - | - | - (-) | - | 2.50\u{a0}M | - |";
        assert!(page.contains(line), "{page}");
    }

    #[test]
    fn a_setting_that_a_rung_has_by_itself_has_no_row() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        let twice = [
            measured("fwd_simple", "local", 1000.0),
            measured("fwd_simple:WARPS=8", "local", 1001.0),
            measured("fwd_simple:WARPS=4", "local", 990.0),
        ];
        record.measurements = twice.to_vec();
        let us = |rows: &[Row]| -> Vec<(String, f64)> {
            let local = |row: &Row| row.cells["head_major_local"].us;
            rows.iter().map(|row| (row.name.clone(), local(row))).collect()
        };
        let expected =
            [("fwd_simple".to_owned(), 1000.0), ("fwd_simple:WARPS=4".to_owned(), 990.0)];
        assert_eq!(us(&rows(&record, &[])), expected);
        // A sweep, which times every value and not the plain name, has a figure of the default.
        record.measurements = vec![measured("fwd_simple:WARPS=8", "local", 900.0)];
        assert_eq!(us(&rows(&record, &[])), [("fwd_simple".to_owned(), 900.0)]);
    }

    #[test]
    fn an_error_that_is_no_number_is_not_hidden_by_others() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        let mut wrong = measured("fwd_simple", "local", 1000.0);
        wrong.rel_l2 = f64::NAN;
        record.measurements = vec![measured("fwd_simple", "uniform", 1000.0), wrong];
        assert_eq!(rows(&record, &[])[0].worst_error, None);
    }

    #[test]
    fn other_workloads_formats_and_clocks_are_left_out() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        let mut by_graph = measured("fwd_simple", "local", 5.0);
        by_graph.timing = Timing::Graph;
        let mut other = measured("fwd_simple", "local", 5.0);
        other.label.dtype = "f32".to_owned();
        record.measurements = vec![by_graph, other];
        assert!(rows(&record, &[]).is_empty());
    }
}
