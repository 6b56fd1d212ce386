//! The ladder as text: a line of `bench --ladder`, and the tables of docs/LADDER.md and the pages.

use askama::Template;
use msdeform::ValueLayout;
use msdeform_cuda_lab::claim;
use msdeform_lab::Locations;
use msdeform_lab::counters::KernelCounters;
use msdeform_lab::device::named::KNOB_SEPARATOR;
use msdeform_lab::digits::three_digits;

use super::{Cell, LAYOUTS, LOCATIONS, Row};
use crate::filters;
use crate::table::{Column, count, or_dash};

const PLAIN: ValueLayout = LAYOUTS[0];
const BORDERED: ValueLayout = LAYOUTS[1];
const UNIFORM: Locations = LOCATIONS[0];
const LOCAL: Locations = LOCATIONS[1];

/// A line of `bench --ladder`: times without the border but for one, the rest of the local locations.
pub const COLUMNS: [Column<Row>; 10] = [
    ("rung", |row| row.name.clone()),
    ("source", |row| row.spec.origin.to_owned()),
    (">us uniform", |row| row.time(PLAIN, UNIFORM)),
    (">us local", |row| row.time(PLAIN, LOCAL)),
    (">us local, border", |row| row.time(BORDERED, LOCAL)),
    (">speed-up", |row| or_dash(row.speedup(LOCAL), |ratio| format!("{ratio:.2}x"))),
    (">TFLOP/s", |row| or_dash(row.tflop_per_s(), three_digits)),
    (">L1 hit", |row| or_dash(row.counter("l1_hit_percent"), |hits| format!("{hits:.0} %"))),
    (">bank conflicts", |row| or_dash(row.bank_conflicts(), count)),
    (">rel L2", |row| or_dash(row.worst_error(), |error| format!("{error:.1e}"))),
];

/// What documents show of a rung: values of the local locations without the border, unless they are named.
impl Row {
    pub(super) fn main(&self) -> Option<&Cell> {
        self.cell(PLAIN, LOCAL)
    }

    /// A time, with that after preparation in brackets where there is one.
    fn time(&self, layout: ValueLayout, locations: Locations) -> String {
        let cell = self.cell(layout, locations);
        let after = cell.and_then(|cell| cell.measurement.us_after_preparation);
        let after = after.map_or_else(String::new, |us| format!(" ({})", three_digits(us)));
        let us = cell.map(Cell::us).filter(|us| us.is_finite());
        or_dash(us, three_digits) + &after
    }

    fn speedup(&self, locations: Locations) -> Option<f64> {
        self.cell(PLAIN, locations)?.speedup
    }

    fn tflop_per_s(&self) -> Option<f64> {
        Some(self.main()?.measurement.throughput().tflop_per_s).filter(|rate| rate.is_finite())
    }

    fn counter(&self, name: &str) -> Option<f64> {
        self.main()?.counter(name)
    }

    fn bank_conflicts(&self) -> Option<f64> {
        self.main()?.bank_conflicts()
    }

    /// The largest error of any cell; none if one is no number.
    pub(super) fn worst_error(&self) -> Option<f64> {
        let errors = self.cells.values().map(|cell| cell.measurement.rel_l2);
        errors
            .into_iter()
            .try_fold(0.0f64, |worst, error| error.is_finite().then(|| worst.max(error)))
    }

    /// A row's document, and what that calls it.
    fn document(&self) -> (&'static str, &'static str) {
        let source = self.spec.origin;
        source.split_once(": ").unwrap_or((source, ""))
    }

    /// The knobs that a row sets otherwise than its variant does.
    fn setting(&self) -> Option<&str> {
        self.name.strip_prefix(self.spec.id)?.strip_prefix(KNOB_SEPARATOR)
    }

    /// What the document claims, and its name of the rung unless the first column has the same.
    fn claim(&self) -> String {
        let (_, name) = self.document();
        match claim(self.spec.id).filter(|_| self.name == self.spec.id) {
            Some(claim) if self.spec.id.ends_with(&name.replace(' ', "_")) => claim.to_owned(),
            Some(claim) => format!("{name}: {claim}"),
            None => String::new(),
        }
    }
}

/// Everything: a table for each document, with what it calls a rung and its claim in a last column. Names link to their
/// pages, as seen from docs/LADDER.md. Times with a border are on the pages.
#[derive(Template)]
#[template(path = "ladder.txt")]
pub(crate) struct Ladder<'a> {
    pub(crate) rows: &'a [Row],
}

impl Ladder<'_> {
    fn documents(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|a, b| a.document().0 == b.document().0)
    }
}

/// What the page of one variant shows as measured: its times, and under them the counters of its kernels.
#[derive(Template)]
#[template(path = "ladder-page.txt")]
pub(crate) struct Page<'a> {
    rows: Vec<&'a Row>,
}

impl<'a> Page<'a> {
    pub(crate) fn of(rows: &'a [Row], id: &str) -> Self {
        Self { rows: rows.iter().filter(|row| row.spec.id == id).collect() }
    }

    /// Every kernel of every setting.
    fn kernels(&self) -> Vec<(String, &'a KernelCounters)> {
        let mut found = Vec::new();
        for row in &self.rows {
            let kernels = row.main().map_or(&[][..], |cell| &cell.kernels);
            found.extend(kernels.iter().map(|kernel| {
                let name = match (row.setting(), kernels) {
                    (None, [_]) => "as it is".to_owned(),
                    (None, _) => kernel.kernel.clone(),
                    (Some(setting), [_]) => setting.to_owned(),
                    (Some(setting), _) => format!("{}, {setting}", kernel.kernel),
                };
                (name, kernel)
            }));
        }
        found
    }
}
