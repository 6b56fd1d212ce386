//! The part of a record that people read.

use std::fmt::Write;

use super::{Record, newest};
use crate::overview::{markdown, overview, three_digits, time};
use crate::work::{BYTES_FORMULA, OPERATIONS_FORMULA};

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
    writeln!(out, "- command: `{}`", provenance.command)?;
    let dirty = if provenance.dirty { ", with uncommitted changes" } else { "" };
    writeln!(out, "- commit: {}{dirty}", provenance.commit)?;
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
    writeln!(out, "\n## Every measurement\n")?;
    writeln!(out, "{OPERATIONS_FORMULA}\n{BYTES_FORMULA}\n")?;
    writeln!(
        out,
        "| workload | N | Lq | locations | layout | dtype | variant | threads | median | MAD | p10 | p90 \
         | runs | Msamples/s | gathered GB/s | compulsory GB/s | TFLOP/s | speed-up | rel L2 |"
    )?;
    writeln!(out, "|---|--:|--:|---|---|---|---|{}", "--:|".repeat(12))?;
    for m in &record.measurements {
        let label = &m.label;
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1e} |",
            label.workload,
            label.batch,
            label.queries,
            label.locations,
            label.layout,
            label.dtype,
            label.variant,
            m.threads.map_or_else(|| "-".to_owned(), |threads| threads.to_string()),
            time(m.statistics.median_us),
            time(m.statistics.mad_us),
            time(m.statistics.p10_us),
            time(m.statistics.p90_us),
            m.statistics.runs,
            three_digits(m.throughput.samples_per_s * 1e-6),
            three_digits(m.throughput.gathered_gb_per_s),
            three_digits(m.throughput.compulsory_gb_per_s),
            format_args!("{:.4}", m.throughput.tflop_per_s),
            m.speedup.map_or_else(|| "-".to_owned(), |speedup| format!("{speedup:.2}x")),
            m.rel_l2,
        )?;
    }
    Ok(())
}
