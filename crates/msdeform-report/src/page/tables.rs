//! The tables of a report: every number that its pictures are drawn from.

use std::collections::BTreeMap;

use msdeform::DType;
use msdeform_lab::counters::Counted;
use msdeform_lab::device::named::id_in;
use msdeform_lab::digits::{three_digits, time};
use msdeform_lab::record::{Figure, Record, Run};

use serde::Serialize;

use crate::ladder::kernels;
use crate::overview::{Row, bound_of};
use crate::table::{Cell, Table, cells};

/// A table that a reader unfolds.
#[derive(Serialize)]
pub(super) struct Folded {
    id: &'static str,
    title: &'static str,
    table: Table,
}

fn number(value: Option<f64>, text: impl FnOnce(f64) -> String) -> Cell {
    value.map_or_else(|| "-".into(), |number| Cell { text: text(number), number: value })
}

fn count(count: usize) -> Cell {
    number(Some(count as f64), |_| count.to_string())
}

/// A line for each run that measurements come from, newest first.
pub(super) fn runs(records: &[Record]) -> Folded {
    let mut table = Table::new("date | commit | >measurements | command");
    for record in records.iter().rev() {
        let mut counts: BTreeMap<usize, (Run, usize)> = BTreeMap::new();
        for measurement in &record.measurements {
            let first = || (record.run_of(measurement), 0);
            counts.entry(measurement.run).or_insert_with(first).1 += 1;
        }
        for (Run { date, provenance }, measured) in counts.into_values().rev() {
            let (revision, command) = (provenance.revision(), provenance.command);
            table.rows.push(vec![date.into(), revision.into(), count(measured), command.into()]);
        }
    }
    Folded { id: "runs", title: "Runs", table }
}

/// What a call gets, case by case, with the baseline and what the device's ceilings leave.
pub(super) fn times(rows: &[Row]) -> Folded {
    let columns = "workload | >N | >Lq | locations | layout | direction | dtype | >time | >against baseline | \
                   >all from L1 | >none from L1 | >DRAM once | >L1 floor / time";
    let rows = rows.iter().flat_map(|row| {
        let best = DType::ALL.into_iter().filter_map(|dtype| row.best.get(dtype.name()));
        best.map(move |best| (row, best))
    });
    let table = Table::new(columns).with(rows.map(|(row, best)| {
        let floors = row.floors.get(&best.dtype);
        let mut cells = vec![Cell::from(&row.workload), count(row.batch), count(row.queries)];
        cells.extend(cells![&row.locations, &row.layout, &row.direction, &best.dtype]);
        cells.extend([
            number(Some(best.median_us), time),
            number(best.speedup, |ratio| format!("{ratio:.1}x")),
            number(floors.map(|floors| floors.l1_us), time),
            number(floors.map(|floors| floors.without_l1_us), time),
            number(floors.map(|floors| floors.dram_us), time),
            number(floors.map(|f| f.l1_us / best.median_us), |s| format!("{:.0} %", 100.0 * s)),
        ]);
        cells
    }));
    Folded { id: "times", title: "Times", table }
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

pub(super) fn counters(counted: &[Counted]) -> Folded {
    let headings = SHOWN_COUNTERS.iter().map(|(_, heading, _)| format!(" | >{heading}"));
    let columns = format!("workload | locations | dtype | kernel{}", headings.collect::<String>());
    let table = Table::new(&columns).with(kernels(counted).map(|kernel| {
        let (label, counters) = (&kernel.label, &kernel.counters);
        // With the knobs that were set.
        let knobs = label.variant.strip_prefix(id_in(&label.variant)).unwrap_or_default();
        let name = format!("{}{knobs}", kernel.name);
        let mut row = cells![&label.workload, &label.locations, &label.dtype, name];
        let value = |name, one| number(counters.get(name).map(|value| value / one), three_digits);
        row.extend(SHOWN_COUNTERS.iter().map(|(name, _, one)| value(*name, one)));
        row
    }));
    Folded { id: "every-counter", title: "Counters", table }
}

/// The largest error of a variant in a dtype, of how many cases it is, and what the accuracy contract allows.
#[derive(Serialize)]
pub(super) struct Worst {
    pub(super) variant: String,
    pub(super) dtype: String,
    cases: usize,
    pub(super) rel_l2: f64,
    pub(super) bound: f64,
}

impl Worst {
    pub(super) fn of<'a>(figures: impl Iterator<Item = &'a Figure>) -> Vec<Self> {
        let mut worst: BTreeMap<(&str, &str), Self> = BTreeMap::new();
        for Figure { variant, dtype, rel_l2, .. } in figures.filter(|f| !f.rel_l2.is_nan()) {
            let entry = worst.entry((variant, dtype)).or_insert_with(|| Self {
                variant: variant.clone(),
                dtype: dtype.clone(),
                cases: 0,
                rel_l2: 0.0,
                bound: bound_of(dtype),
            });
            (entry.cases, entry.rel_l2) = (entry.cases + 1, entry.rel_l2.max(*rel_l2));
        }
        worst.into_values().collect()
    }
}

pub(super) fn errors(figures: &[Figure]) -> Folded {
    let rows = Worst::of(figures.iter()).into_iter().map(|worst| {
        let mut row = cells![&worst.variant, &worst.dtype];
        row.extend([
            count(worst.cases),
            number(Some(worst.rel_l2), |error| format!("{error:.1e}")),
            number(Some(worst.bound), |bound| format!("{bound:.0e}")),
        ]);
        row
    });
    let table = Table::new("variant | dtype | >cases | >worst rel L2 | >bound").with(rows);
    Folded { id: "every-error", title: "Errors", table }
}
