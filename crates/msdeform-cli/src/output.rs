//! Standard output, tables and progress.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
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

/// A plain table: no frame, two spaces between columns, the same on a terminal and in a pipe.
pub struct Columns {
    table: Table,
    align: Vec<CellAlignment>,
}

/// Tables that wrap do so here, wherever they are shown.
const WIDTH: u16 = 112;

impl Columns {
    /// A table with these headings, which a `|` divides. Below one that begins with `>` numbers stand to the right.
    pub fn new(headings: &str) -> Self {
        let columns = headings.split(" | ").map(|heading| match heading.strip_prefix('>') {
            Some(name) => (name, CellAlignment::Right),
            None => (heading, CellAlignment::Left),
        });
        let (names, align): (Vec<&str>, Vec<CellAlignment>) = columns.unzip();
        let mut columns = Self { table: Table::new(), align };
        columns.table.load_style(comfy_table::presets::NOTHING);
        columns.table.set_header(columns.cells(&names));
        columns
    }

    fn cells(&self, texts: &[impl AsRef<str>]) -> Vec<Cell> {
        let each = texts.iter().zip(&self.align);
        each.map(|(text, align)| Cell::new(text.as_ref()).set_alignment(*align)).collect()
    }

    /// Lets long texts wrap.
    pub fn wrapping(mut self) -> Self {
        self.table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        self
    }

    pub fn row(&mut self, cells: &[String]) {
        self.table.add_row(self.cells(cells));
    }

    pub fn rows<T>(
        mut self,
        items: impl IntoIterator<Item = T>,
        cells: impl Fn(T) -> Vec<String>,
    ) -> Self {
        items.into_iter().for_each(|item| self.row(&cells(item)));
        self
    }
}

impl std::fmt::Display for Columns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.table.to_string();
        // The blank is the padding of the first column.
        let lines = text.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
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
        let mut columns = Columns::new("name | >us");
        columns.row(&["a".into(), "1.5".into()]);
        columns.row(&["longer".into(), "12.5".into()]);
        let text = columns.to_string();
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
        assert!(text.lines().count() == 3, "{text}");
    }
}
