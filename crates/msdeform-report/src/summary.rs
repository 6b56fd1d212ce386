//! The part of a record that people read.

use minijinja::context;
use minijinja::value::Serde;
use msdeform_lab::record::newest;
use msdeform_lab::{Record, RecordError};

use crate::overview::overview;
use crate::render::render;

/// A record as Markdown, with its best exact times.
pub fn summary(record: &Record) -> Result<String, RecordError> {
    let rows = overview(&newest(std::slice::from_ref(record)));
    // The runs that it was merged from, and how many measurements each has.
    let runs = record.runs.iter().enumerate().map(|(at, run)| {
        let measurements = record.measurements.iter().filter(|found| found.run == at).count();
        let (revision, command) = (run.provenance.revision(), &run.provenance.command);
        context! { date => &run.date, revision, command, measurements }
    });
    let runs: Vec<_> = runs.collect();
    render("summary.txt", context! { record => Serde(record), rows => Serde(rows), runs })
}
