//! What tuning gains over the built-in choice, as a table for documents.

use std::fmt::Write;

use msdeform::DType;

use super::{TuneRecord, TunedCase};

/// A line for each workload and direction, a column for each format; empty without cases.
pub fn gaps_markdown(record: &TuneRecord) -> String {
    let mut lines: Vec<(String, Vec<&TunedCase>)> = Vec::new();
    for case in record.cases.iter().filter(|case| case.has_choice()) {
        let label = &case.label;
        let mode = if case.class.mode == "fast" { "" } else { " (deterministic)" };
        let name = format!(
            "| {} | {} | {} | {}{mode} |",
            label.workload, label.batch, label.queries, label.direction
        );
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, cases)) => cases.push(case),
            None => lines.push((name, vec![case])),
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let within = record.cases.iter().filter(|case| case.gap() <= 0.05).count();
    let mut out = format!(
        "What `msdeform tune` gains over the variant a call gets without it ({within} of {} within 5 %):\n\n\
         | workload | N | Lq | direction | f32 | f16 | bf16 |\n|---|--:|--:|---|--:|--:|--:|\n",
        record.cases.len()
    );
    for (name, cases) in lines {
        let cell = |dtype: DType| {
            let found = cases.iter().find(|case| case.label.dtype == dtype.name());
            found.map_or_else(|| "-".to_owned(), |case| gain(case))
        };
        let cells = [DType::F32, DType::F16, DType::Bf16].map(cell);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name} {} |", cells.join(" | "));
    }
    out.push('\n');
    let short = record.cases.iter().filter(|case| case.untried() > 0).count();
    if short > 0 {
        let _ = writeln!(
            out,
            "Time ran out in {short} of {} calls; brackets give the choices that were tried there, of all.\n",
            record.cases.len()
        );
    }
    let without: Vec<String> =
        record.unfinished.iter().map(|call| format!("{} ({})", call.call, call.reason)).collect();
    if !without.is_empty() {
        let _ = writeln!(out, "No result: {}.\n", without.join(", "));
    }
    out
}

/// What tuning gains on a call, and on how many choices that rests if it is not all of them.
fn gain(case: &TunedCase) -> String {
    let gain = format!("{:.1} %", 100.0 * case.gap());
    match case.untried() {
        0 => gain,
        untried => format!("{gain} ({} of {})", case.choices - untried, case.choices),
    }
}
