//! The part of a record that people read.

use askama::Template;
use msdeform_lab::Record;
use msdeform_lab::digits::three_digits;
use msdeform_lab::record::{Run, newest};

use crate::filters;
use crate::overview::{Row, overview};
use crate::table::{Table, cells};

#[derive(Template)]
#[template(path = "summary.txt")]
struct Summary<'a> {
    record: &'a Record,
    /// How fast the device copies memory, where that was measured.
    copy: Option<String>,
    /// The best exact times.
    rows: Vec<Row>,
    runs: String,
}

/// A record as Markdown.
pub fn summary(record: &Record) -> String {
    let copy = record.device.bandwidth.as_ref().map(|bandwidth| {
        format!(
            "{} GB/s read + written, {} MiB, {} threads{}",
            three_digits(bandwidth.copy_gb_per_s),
            bandwidth.buffer_bytes >> 20,
            bandwidth.threads,
            if bandwidth.in_cache { ", within the cache" } else { "" },
        )
    });
    let runs = record.runs.iter().enumerate().map(|(index, Run { date, provenance })| {
        let count = record.measurements.iter().filter(|m| m.run == index).count();
        cells![date, provenance.revision(), count, format!("`{}`", provenance.command)]
    });
    let summary = Summary {
        record,
        copy,
        rows: overview(&newest(std::slice::from_ref(record))),
        runs: Table::new("date | commit | >measurements | command").with(runs).markdown(),
    };
    summary.to_string()
}
