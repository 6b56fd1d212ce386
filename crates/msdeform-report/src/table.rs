//! One table for all documents and pages: columns with their alignment, rows of cells.

use msdeform_lab::digits::three_digits;

/// A cell: its text, and the number that its column is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub text: String,
    pub number: Option<f64>,
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.to_string(), number: None }
    }
}

/// Items under their keys, in the order in which the keys come first.
pub fn grouped<K: PartialEq, T>(items: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, of_key)) => of_key.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// A column: its heading, which begins with `>` above numbers, and the cell of a row.
pub type Column<R> = (&'static str, fn(&R) -> String);

/// A value as text, or a dash.
pub fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Thousands and millions by letter.
pub(crate) fn count(number: f64) -> String {
    match number {
        number if number < 1e3 => format!("{number:.0}"),
        number if number < 1e6 => format!("{} k", three_digits(number * 1e-3)),
        number => format!("{} M", three_digits(number * 1e-6)),
    }
}

/// A row of cells of anything that has a text.
#[macro_export]
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::table::Cell::from(&$cell)),*] };
}
pub use cells;

/// A table with named columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// Names of the columns, and whether they are aligned as numbers.
    pub columns: Vec<(String, bool)>,
    /// Cells, row by row. A row that ends early has empty cells at its end.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table. Columns are separated by ` | `. A `>` before a name aligns the column as numbers.
    pub fn new(columns: &str) -> Self {
        let column = |name: &str| match name.strip_prefix('>') {
            Some(name) => (name.to_owned(), true),
            None => (name.to_owned(), false),
        };
        Self { columns: columns.split(" | ").map(column).collect(), rows: Vec::new() }
    }

    /// The same with these rows.
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<Cell>>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// The table as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: Vec<&str>| {
            let missing = " |".repeat(self.columns.len() - cells.len().min(self.columns.len()));
            format!("| {} |{missing}\n", cells.join(" | "))
        };
        let rule =
            self.columns.iter().map(|(_, is_number)| if *is_number { "--:|" } else { "---|" });
        let names = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let mut out = format!("{}|{}\n", line(names), rule.collect::<String>());
        for row in &self.rows {
            out += &line(row.iter().map(|cell| cell.text.as_str()).collect());
        }
        out
    }
}

/// Each item once, in the order in which they come first.
pub(crate) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    grouped(items.into_iter().map(|item| (item, ()))).into_iter().map(|(item, _)| item).collect()
}

/// Tables of a document, where there are any.
pub(crate) fn or_nothing(tables: &[String], between: &str) -> String {
    if tables.is_empty() {
        "Nothing has been measured yet.\n".to_owned()
    } else {
        tables.join(between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_as_markdown_aligns_numbers_and_fills_short_rows() {
        let table = Table::new("a | >b | >c").with([cells!["x", 1, 2.5], cells!["y"]]);
        assert_eq!(table.markdown(), "| a | b | c |\n|---|--:|--:|\n| x | 1 | 2.5 |\n| y | | |\n");
    }
}
