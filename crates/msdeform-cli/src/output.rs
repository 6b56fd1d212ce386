//! Standard output, tables and progress.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use comfy_table::{CellAlignment, ContentArrangement};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
pub use msdeform_report::table::{Table, cells, or_dash};
use serde::Serialize;

use crate::exit::OutputClosed;

pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        result => result.context("cannot write to standard output"),
    }
}

pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value).context("cannot write JSON")?)
}

/// Prints JSON if it is wanted, else text.
pub fn show(
    json: bool,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

/// Tables that wrap do so here, wherever they are shown.
const WIDTH: u16 = 112;

/// A table as text: no frame, two spaces between columns, the same on a terminal and in a pipe.
pub fn aligned(table: &Table) -> String {
    as_text(table, ContentArrangement::Disabled)
}

/// The same with long texts wrapped.
pub fn wrapped(table: &Table) -> String {
    as_text(table, ContentArrangement::Dynamic)
}

fn as_text(table: &Table, arrangement: ContentArrangement) -> String {
    let mut text = comfy_table::Table::new();
    text.load_style(comfy_table::presets::NOTHING);
    text.set_content_arrangement(arrangement).set_width(WIDTH);
    text.set_header(table.columns.iter().map(|(name, _)| name));
    text.add_rows(&table.rows);
    for (column, (_, is_number)) in text.column_iter_mut().zip(&table.columns) {
        let alignment = if *is_number { CellAlignment::Right } else { CellAlignment::Left };
        column.set_cell_alignment(alignment);
    }
    let text = text.to_string();
    // The blank is the padding of the first column.
    let lines = text.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

/// A bar on standard error, cleared when dropped; nothing where that is no terminal.
pub fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_prefix(what);
    let template = "{prefix:>9} {bar:30} {pos}/{len}  {elapsed}  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// An error such as `3.1e-7`; `NaN` stays visible.
pub fn error_figure(error: f64) -> String {
    if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") }
}

/// A whole number with groups of three digits.
pub fn grouped(number: usize) -> String {
    HumanCount(number as u64).to_string().replace(',', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_errors_are_short() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234_567), "1_234_567");
        assert_eq!(grouped(100), "100");
        assert_eq!(error_figure(0.000_000_31), "3.1e-7");
        assert_eq!(error_figure(0.0), "0");
        assert_eq!(error_figure(f64::NAN), "NaN");
    }

    #[test]
    fn tables_align_and_leave_no_blanks_at_line_ends() {
        let table = Table::new("name | >us").with([cells!["a", 1.5], cells!["longer", 12.5]]);
        let text = aligned(&table);
        assert_eq!(text, "name      us\na        1.5\nlonger  12.5");
    }
}
