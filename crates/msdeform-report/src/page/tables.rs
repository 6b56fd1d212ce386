//! What the tables of a report show: every number that its pictures are drawn from.

use std::collections::BTreeMap;

use minijinja::context;
use minijinja::value::Value;
use msdeform::DType;
use msdeform_lab::counters::Counted;
use msdeform_lab::device::named::id_in;
use msdeform_lab::record::{Figure, Record, Run};
use serde::Serialize;

use crate::ladder::{Kernel, kernels};
use crate::overview::{Row, bound_of};

/// The runs that measurements come from, newest first.
pub(super) fn runs(records: &[Record]) -> Vec<Value> {
    let of_record = |record: &Record| {
        let mut counts: BTreeMap<usize, (Run, usize)> = BTreeMap::new();
        for measurement in &record.measurements {
            let first = || (record.run_of(measurement), 0);
            counts.entry(measurement.run).or_insert_with(first).1 += 1;
        }
        counts.into_values().rev()
    };
    let runs = records.iter().rev().flat_map(of_record).map(|(run, measurements)| {
        let (revision, command) = (run.provenance.revision(), run.provenance.command);
        context! { date => run.date, revision, command, measurements }
    });
    runs.collect()
}

/// What a call gets, case by case.
pub(super) fn times(rows: &[Row]) -> Vec<(&Row, &Figure)> {
    let of_row = rows.iter().flat_map(|row| DType::ALL.map(|dtype| (row, dtype)));
    of_row.filter_map(|(row, dtype)| Some((row, row.best.get(dtype.name())?))).collect()
}

/// Kernels after the knobs that were set.
pub(super) fn counters(counted: &[Counted]) -> Vec<(String, Kernel)> {
    let with_knobs = |kernel: Kernel| {
        let variant = &kernel.label.variant;
        (variant.strip_prefix(id_in(variant)).unwrap_or_default().to_owned(), kernel)
    };
    kernels(counted).map(with_knobs).collect()
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
