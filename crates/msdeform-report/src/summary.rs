//! The part of a record that people read.

use std::fmt::Write;

use msdeform_bench::Record;
use msdeform_bench::digits::three_digits;
use msdeform_bench::record::{Run, newest};

use crate::cells;
use crate::overview::{markdown, overview};
use crate::table::Table;

/// A record as Markdown.
#[must_use]
pub fn summary(record: &Record) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_summary(record, &mut out);
    out
}

fn write_summary(record: &Record, out: &mut String) -> std::fmt::Result {
    let Record { device, provenance, environment, .. } = record;
    writeln!(out, "# {}, {}\n", device.name, record.date)?;
    if record.runs.is_empty() {
        writeln!(out, "- command: `{}`", provenance.command)?;
        let dirty = if provenance.dirty { ", with uncommitted changes" } else { "" };
        writeln!(out, "- commit: {}{dirty}", provenance.commit)?;
    }
    writeln!(
        out,
        "- msdeform {} ({}, {}), {}, kernel {}",
        environment.msdeform,
        environment.rustc,
        environment.build,
        environment.os,
        environment.kernel
    )?;
    for (name, fact) in &device.facts {
        writeln!(out, "- {name}: {fact}")?;
    }
    if let Some(bandwidth) = &device.bandwidth {
        writeln!(
            out,
            "- memory copy: {} GB/s read + written, {} MiB, {} threads{}",
            three_digits(bandwidth.copy_gb_per_s),
            bandwidth.buffer_bytes >> 20,
            bandwidth.threads,
            if bandwidth.in_cache { ", within the cache" } else { "" },
        )?;
    }
    let report = &record.verification;
    writeln!(
        out,
        "- verification: {} combinations checked, {} failed, {} skipped\n",
        report.checked.len(),
        report.failures().count(),
        report.skipped.len()
    )?;
    if record.unfinished_cases > 0 {
        writeln!(out, "Broken off; cases not timed: {}.\n", record.unfinished_cases)?;
    }
    if record.measurements.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Best exact time by workload\n")?;
    out.push_str(&markdown(&overview(&newest(std::slice::from_ref(record)))));
    if !record.runs.is_empty() {
        let rows = record.runs.iter().enumerate().map(|(index, Run { date, provenance })| {
            let count = record.measurements.iter().filter(|m| m.run == index).count();
            cells![date, provenance.revision(), count, format!("`{}`", provenance.command)]
        });
        let table = Table::new("date | commit | >measurements | command").with(rows);
        write!(out, "\n## Runs\n\n{}", table.markdown())?;
    }
    Ok(())
}
