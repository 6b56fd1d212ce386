//! The ladder: every forward variant on the workload of the seed documents, in one table.

mod settings;
mod story;
mod tables;

use std::collections::BTreeMap;

use msdeform::{DType, Direction, ValueLayout, VariantSpec};
use msdeform_bench::Measurement;
use msdeform_bench::counters::{Counted, KernelCounters};
use msdeform_bench::record::Record;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::{REGISTRY, claim, registry};
use msdeform_devices::Locations;
use msdeform_devices::device::Timing;
use msdeform_devices::device::named::id_in;

pub use settings::{names, own_name};
pub use story::{STOPS, limits_picture, stop_markdown, times_picture};
pub use tables::{COLUMNS, markdown, page_markdown};

/// The workload of the seed documents.
pub const WORKLOAD: &str = "seed";
/// The dtype of the seed documents.
pub const DTYPE: DType = DType::F16;
/// Without and with the border.
pub const LAYOUTS: [ValueLayout; 2] = [ValueLayout::HeadMajor, ValueLayout::HeadMajorPadded];
/// Spread out, and as trained models draw them.
pub const LOCATIONS: [Locations; 2] = [Locations::Uniform, Locations::Local];

/// The forward variants, in the order of the registry.
pub fn variants() -> impl Iterator<Item = &'static VariantSpec> {
    forward().map(Variant::spec)
}

fn forward() -> impl Iterator<Item = &'static dyn Variant> {
    let is_forward = |variant: &&dyn Variant| variant.spec().direction == Direction::Forward;
    REGISTRY.iter().copied().filter(is_forward)
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The variant's id, followed by the knobs that were set.
    name: String,
    spec: &'static VariantSpec,
    /// The claim of the seed document.
    claim: Option<&'static str>,
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

/// The table of one device's records, which come oldest first, and of what was counted on it. A variant
/// that no record has gets no row, and a setting that a variant has by itself (`fwd_simple:WARPS=8`) none of its own:
/// it stands for the variant only where the same record did not time it by its plain name.
pub fn rows(records: &[Record], counted: &[Counted]) -> Vec<Row> {
    let mut newest: BTreeMap<(String, String, String), &Measurement> = BTreeMap::new();
    for record in records {
        let of_ladder = record.measurements.iter().filter(|measurement| is_of_ladder(measurement));
        let (plain, renamed): (Vec<_>, Vec<_>) = of_ladder
            .map(|measurement| (own_name(&measurement.label.variant), measurement))
            .partition(|(name, measurement)| *name == measurement.label.variant);
        // The plain name is inserted last and stays.
        for (name, measurement) in renamed.into_iter().chain(plain) {
            let label = &measurement.label;
            newest.insert((name, label.layout.clone(), label.locations.clone()), measurement);
        }
    }
    let original = registry::baseline(Direction::Forward).map_or("", |variant| variant.spec().id);
    let mut rows: BTreeMap<(usize, &str), Row> = BTreeMap::new();
    for ((name, layout, locations), measurement) in &newest {
        let mut specs = variants().enumerate();
        let Some((place, spec)) = specs.find(|(_, spec)| spec.id == id_in(name)) else { continue };
        let baseline = newest.get(&(original.to_owned(), layout.clone(), locations.clone()));
        let us = measurement.statistics.median_us;
        let kernels = counted.iter().find(|counted| counted.label == measurement.label);
        let cell = Cell {
            measurement: Measurement::clone(measurement),
            speedup: baseline.map(|baseline| baseline.statistics.median_us / us),
            kernels: kernels.map_or_else(Vec::new, |counted| counted.kernels.clone()),
        };
        let row = rows.entry((place, name)).or_insert_with(|| Row {
            name: name.clone(),
            spec,
            claim: claim(spec.id),
            cells: BTreeMap::new(),
        });
        row.cells.insert((layout.clone(), locations.clone()), cell);
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
    use msdeform_bench::counters::{KernelCounters, Reading};
    use msdeform_bench::fixtures::record_of;

    use super::*;

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
        let counted = Counted {
            commit: String::new(),
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
        let rows = rows(&[record], &[counted]);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["fwd_original", "fwd_simple", "fwd_simple:WARPS=4", "fwd_tile_gather"]);
        let table = markdown(&rows, "docs/kernels/");
        assert!(table.contains("| - | 1000 | 2.00x |"), "{table}");
        assert!(table.contains("| 81\u{a0}% | 2.50\u{a0}M |"), "{table}");
        // A table for each document, in which a setting stands below its rung.
        assert_eq!((table.matches("| rung |").count(), table.matches("**ours**").count()), (2, 1));
        assert!(table.contains("| 0.8 TFLOP/s, 1.6x |\n| [·\u{a0}WARPS=4]"), "{table}");
        let page = page_markdown(&rows, "fwd_simple");
        assert!(page.contains("| WARPS=4 | 1000 | - | - | - | 2.00x | - |"), "{page}");
        // One kernel was counted; what was not read of it is a dash.
        assert!(
            page.contains("| WARPS=4 | - | - | - | - | - (-) | - | 2.50\u{a0}M | 81\u{a0}% |"),
            "{page}"
        );
        assert_eq!(page_markdown(&rows, "fwd_general"), "Not measured yet.\n");
    }

    #[test]
    fn bars_are_parts_of_the_longest_and_the_last_is_ours() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        record.measurements = vec![
            measured("fwd_original", "local", 2000.0),
            measured("fwd_tile_gather", "local", 1000.0),
        ];
        let [scheme, _] = &crate::svg::SCHEMES;
        let drawn = times_picture(&rows(&[record], &[]), "G", scheme);
        for part in ["width=\"430\"", "width=\"215\"", "2000 us, 1.0\u{d7}", "1000 us, 2.0\u{d7}"] {
            assert_eq!(drawn.matches(part).count(), 1, "{part}: {drawn}");
        }
        assert_eq!(drawn.matches(scheme.ours).count(), 1);
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
        assert_eq!(us(&rows(&[record.clone()], &[])), expected);
        // A sweep, which times every value and not the plain name, is a newer figure of the default.
        let mut sweep = record_of("2026-01-02T00:00:00Z", 1.0);
        sweep.measurements = vec![measured("fwd_simple:WARPS=8", "local", 900.0)];
        assert_eq!(us(&rows(&[record, sweep], &[]))[0], ("fwd_simple".to_owned(), 900.0));
    }

    #[test]
    fn an_error_that_is_no_number_is_not_hidden_by_others() {
        let mut record = record_of("2026-01-01T00:00:00Z", 1.0);
        let mut wrong = measured("fwd_simple", "local", 1000.0);
        wrong.rel_l2 = f64::NAN;
        record.measurements = vec![measured("fwd_simple", "uniform", 1000.0), wrong];
        let [.., (_, error)] = COLUMNS;
        assert_eq!(error(&rows(&[record], &[])[0]), "-");
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
