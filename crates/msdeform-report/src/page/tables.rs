//! The tables of a report: every number that its pictures are drawn from.

use std::collections::BTreeMap;

use msdeform::DType;
use msdeform_bench::Ceilings;
use msdeform_bench::counters::Counted;
use msdeform_bench::digits::{three_digits, time};
use msdeform_bench::record::{Figure, Record, Run};

use super::content::{floors_of, name_of};
use crate::overview::Row;

/// A cell: what is read, and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What people read.
    pub text: String,
    /// What a column of numbers is sorted by.
    pub number: Option<f64>,
}

impl Cell {
    fn word(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    fn number(text: String, number: f64) -> Self {
        Self { text, number: Some(number) }
    }

    fn count(count: usize) -> Self {
        Self::number(count.to_string(), count as f64)
    }

    /// A time; a dash where there is none.
    fn time(us: Option<f64>) -> Self {
        us.map_or_else(|| Self::word("-"), |us| Self::number(time(us), us))
    }

    fn share(part: Option<f64>) -> Self {
        part.map_or_else(
            || Self::word("-"),
            |part| Self::number(format!("{:.0} %", 100.0 * part), part),
        )
    }
}

/// A table with named columns; `true` for numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names of the columns, and whether they hold numbers.
    pub headings: Vec<(&'static str, bool)>,
    /// Cells, row by row.
    pub rows: Vec<Vec<Cell>>,
}

/// A line for each run that measurements come from, newest first.
pub(super) fn runs(records: &[Record]) -> Table {
    let headings =
        vec![("date", false), ("commit", false), ("measurements", true), ("command", false)];
    let mut rows = Vec::new();
    for record in records.iter().rev() {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for measurement in &record.measurements {
            *counts.entry(measurement.run).or_default() += 1;
        }
        for (run, count) in counts.into_iter().rev() {
            let of_run = record.measurements.iter().find(|m| m.run == run);
            let Some(Run { date, provenance }) = of_run.map(|m| record.run_of(m)) else { continue };
            rows.push(vec![
                Cell::word(date),
                Cell::word(provenance.revision()),
                Cell::count(count),
                Cell::word(provenance.command),
            ]);
        }
    }
    Table { headings, rows }
}

/// What a call gets, case by case, beside the baseline and what the device's ceilings leave.
pub(super) fn times(rows: &[Row], ceilings: Option<&Ceilings>) -> Table {
    let headings = vec![
        ("workload", false),
        ("N", true),
        ("Lq", true),
        ("locations", false),
        ("layout", false),
        ("direction", false),
        ("dtype", false),
        ("time", true),
        ("against baseline", true),
        ("all from L1", true),
        ("none from L1", true),
        ("DRAM once", true),
        ("L1 floor / time", true),
    ];
    let rows = rows.iter().flat_map(|row| {
        let best = DType::ALL.into_iter().filter_map(|dtype| row.best.get(dtype.name()));
        best.map(move |best| (row, best))
    });
    let rows = rows.map(|(row, best)| {
        let floors = ceilings.and_then(|ceilings| floors_of(best, ceilings));
        vec![
            Cell::word(&row.workload),
            Cell::count(row.batch),
            Cell::count(row.queries),
            Cell::word(&row.locations),
            Cell::word(&row.layout),
            Cell::word(&row.direction),
            Cell::word(&best.dtype),
            Cell::time(Some(best.median_us)),
            best.speedup.map_or_else(
                || Cell::word("-"),
                |ratio| Cell::number(format!("{ratio:.1}x"), ratio),
            ),
            Cell::time(floors.map(|floors| floors.l1_us)),
            Cell::time(floors.map(|floors| floors.without_l1_us)),
            Cell::time(floors.map(|floors| floors.dram_us)),
            Cell::share(floors.map(|floors| floors.l1_us / best.median_us)),
        ]
    });
    Table { headings, rows: rows.collect() }
}

/// What is shown of each kernel: name of the counter, heading, how many of the unit make one.
const SHOWN_COUNTERS: &[(&str, &str, f64)] = &[
    ("l1_wavefronts", "L1 wavefronts, M", 1e6),
    ("l1_percent", "of L1's peak, %", 1.0),
    ("bank_conflicts", "bank conflicts, M", 1e6),
    ("l1_hit_percent", "L1 hits, %", 1.0),
    ("l2_hit_percent", "L2 hits, %", 1.0),
    ("dram_bytes", "DRAM, MB", 1e6),
    ("issue_percent", "issue slots, %", 1.0),
    ("occupancy_percent", "warps, %", 1.0),
    ("registers", "registers", 1.0),
];

pub(super) fn counters(counted: &[Counted]) -> Table {
    let mut headings =
        vec![("workload", false), ("locations", false), ("dtype", false), ("kernel", false)];
    headings.extend(SHOWN_COUNTERS.iter().map(|(_, heading, _)| (*heading, true)));
    let kernels = counted.iter().flat_map(|p| p.kernels.iter().map(move |kernel| (p, kernel)));
    let rows = kernels.map(|(Counted { label, .. }, kernel)| {
        let mut row = vec![
            Cell::word(&label.workload),
            Cell::word(&label.locations),
            Cell::word(&label.dtype),
            Cell::word(name_of(label, kernel)),
        ];
        row.extend(SHOWN_COUNTERS.iter().map(|(name, _, one)| {
            let value = kernel.get(name).map(|value| value / one);
            value.map_or_else(|| Cell::word("-"), |v| Cell::number(three_digits(v), v))
        }));
        row
    });
    Table { headings, rows: rows.collect() }
}

pub(super) fn errors(figures: &[Figure]) -> Table {
    let headings = vec![
        ("variant", false),
        ("dtype", false),
        ("cases", true),
        ("worst rel L2", true),
        ("bound", true),
    ];
    let mut worst: BTreeMap<(&str, &str), (usize, f64)> = BTreeMap::new();
    for figure in figures.iter().filter(|figure| !figure.rel_l2.is_nan()) {
        let entry = worst.entry((&figure.variant, &figure.dtype)).or_insert((0, 0.0));
        *entry = (entry.0 + 1, entry.1.max(figure.rel_l2));
    }
    let rows = worst.into_iter().map(|((variant, dtype), (cases, error))| {
        let bound = dtype.parse::<DType>().map_or(0.0, DType::rel_l2_bound);
        vec![
            Cell::word(variant),
            Cell::word(dtype),
            Cell::count(cases),
            Cell::number(format!("{error:.1e}"), error),
            Cell::number(format!("{bound:.0e}"), bound),
        ]
    });
    Table { headings, rows: rows.collect() }
}
