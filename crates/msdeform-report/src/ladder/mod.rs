//! The ladder: every forward variant on the workload of the seed documents, in one table.

mod settings;
mod story;
mod tables;

use std::collections::BTreeMap;

use msdeform::{DType, Direction, ValueLayout, VariantSpec};
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::counters::{Counted, KernelCounters};
use msdeform_lab::device::Timing;
use msdeform_lab::device::named::id_in;
use msdeform_lab::record::Record;
use msdeform_lab::{Locations, Measurement};

pub use settings::names;
pub(crate) use settings::own_name;
pub(crate) use story::{STOPS, Stop, limits_picture, times_picture};
pub use tables::COLUMNS;
pub(crate) use tables::{Ladder, Page};

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
#[derive(Clone, Debug)]
pub struct Row {
    /// The variant's id, followed by the knobs that were set.
    name: String,
    spec: &'static VariantSpec,
    /// What was measured, by layout and locations.
    cells: BTreeMap<(String, String), Cell>,
}

impl Row {
    fn cell(&self, layout: ValueLayout, locations: Locations) -> Option<&Cell> {
        self.cells.get(&(layout.name().to_owned(), locations.name().to_owned()))
    }
}

/// One variant in one layout with one kind of locations.
#[derive(Clone, Debug)]
struct Cell {
    measurement: Measurement,
    /// Time of the original over this.
    speedup: Option<f64>,
    /// All counters of its kernels, where they were read.
    kernels: Vec<KernelCounters>,
}

impl Cell {
    fn us(&self) -> f64 {
        self.measurement.statistics.median_us
    }

    /// A counter of the step that gathers, which comes last.
    fn counter(&self, name: &str) -> Option<f64> {
        self.kernels.last()?.get(name)
    }

    /// Wavefronts that bank conflicts cost, in all steps.
    fn bank_conflicts(&self) -> Option<f64> {
        self.kernels.iter().filter_map(|kernel| kernel.get("bank_conflicts")).reduce(|a, b| a + b)
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
        let label = &measurement.label;
        let kernels = counted.iter().find(|counted| counted.label == *label);
        let cell = Cell {
            measurement: measurement.clone(),
            speedup: measurement.speedup_among(&record.measurements),
            kernels: kernels.map_or_else(Vec::new, |counted| counted.kernels.clone()),
        };
        let row = rows.entry((place, name.clone()));
        let row = row.or_insert(Row { name, spec, cells: BTreeMap::new() });
        row.cells.insert((label.layout.clone(), label.locations.clone()), cell);
    }
    rows.into_values().collect()
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
        let page = Page::of(&rows, "fwd_simple").to_string();
        assert!(page.contains("| WARPS=4 | 1000 | - | - | - | 2.00x | - |"), "{page}");
        let line = "| WARPS=4 | - | - | - | - | - (-) | - | 2.50\u{a0}M | - |";
        assert!(page.contains(line), "{page}");
        assert_eq!(Page::of(&rows, "fwd_general").to_string(), "Not measured yet.\n");
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
            let local = |row: &Row| row.cell(LAYOUTS[0], Locations::Local).map(Cell::us);
            rows.iter().map(|row| (row.name.clone(), local(row).unwrap())).collect()
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
        let [.., (_, error)] = COLUMNS;
        assert_eq!(error(&rows(&record, &[])[0]), "-");
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
