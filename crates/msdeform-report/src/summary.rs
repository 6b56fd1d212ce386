//! The part of a record that people read.

use askama::Template;
use msdeform_lab::Record;
use msdeform_lab::record::{Run, newest};

use crate::filters;
use crate::overview::{Row, overview};

#[derive(Template)]
#[template(path = "summary.txt")]
struct Summary<'a> {
    record: &'a Record,
    /// The best exact times.
    rows: Vec<Row>,
}

impl Summary<'_> {
    /// The runs that it was merged from, and how many measurements each has.
    fn runs(&self) -> impl Iterator<Item = (&Run, usize)> {
        let of = |at| self.record.measurements.iter().filter(move |found| found.run == at).count();
        self.record.runs.iter().enumerate().map(move |(at, run)| (run, of(at)))
    }
}

/// A record as Markdown.
pub fn summary(record: &Record) -> String {
    let rows = overview(&newest(std::slice::from_ref(record)));
    Summary { record, rows }.to_string()
}
