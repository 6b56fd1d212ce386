//! Counters as a table for documents.

use std::fmt::Write;

use super::{Counted, KernelCounters};
use crate::digits::three_digits;

type Column = (&'static str, fn(&KernelCounters) -> Option<f64>);

const COLUMNS: &[Column] = &[
    ("L1 hits, %", |kernel| kernel.get("l1_hit_percent")),
    ("L1 busy, %", |kernel| kernel.get("l1_percent")),
    ("bank conflicts, % of wavefronts", |kernel| {
        let wavefronts = kernel.get("l1_wavefronts").filter(|count| *count > 0.0)?;
        Some(100.0 * kernel.get("bank_conflicts")? / wavefronts)
    }),
    ("L2 hits, %", |kernel| kernel.get("l2_hit_percent")),
    ("DRAM, MB", |kernel| Some(kernel.get("dram_bytes")? * 1e-6)),
    ("issue slots, %", |kernel| kernel.get("issue_percent")),
    ("warps, %", |kernel| kernel.get("occupancy_percent")),
    ("registers", |kernel| kernel.get("registers")),
];

pub fn counters_markdown(counted: &[Counted]) -> String {
    if counted.is_empty() {
        return "No counters have been read yet.\n".to_owned();
    }
    let mut out = String::from("| kernel | workload | locations | dtype |");
    // Writing to a String cannot fail.
    for (heading, _) in COLUMNS {
        let _ = write!(out, " {heading} |");
    }
    let _ = writeln!(out, "\n|---|---|---|---|{}", "--:|".repeat(COLUMNS.len()));
    for Counted { label, kernels, .. } in counted {
        for kernel in kernels {
            let case = format!("{} | {} | {}", label.workload, label.locations, label.dtype);
            let _ = write!(out, "| {} | {case} |", kernel.kernel);
            for (_, value) in COLUMNS {
                let cell = value(kernel).map_or_else(|| "-".to_owned(), three_digits);
                let _ = write!(out, " {cell} |");
            }
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Reading;
    use crate::fixtures::record_of;

    #[test]
    fn conflicts_are_a_share_and_what_was_not_read_is_a_dash() {
        let reading = |name: &str, value| Reading { name: name.to_owned(), value };
        let counted = Counted {
            commit: String::new(),
            label: record_of("2026-01-01T00:00:00Z", 1.0).measurements[0].label.clone(),
            kernels: vec![KernelCounters {
                kernel: "fwd_test".to_owned(),
                launches: 1,
                readings: vec![reading("l1_wavefronts", 200.0), reading("bank_conflicts", 9.0)],
            }],
        };
        let table = counters_markdown(&[counted]);
        assert!(
            table.contains("| fwd_test | ddetr_enc | local | f32 | - | - | 4.50 | - |"),
            "{table}"
        );
        assert!(counters_markdown(&[]).contains("No counters"));
    }
}
