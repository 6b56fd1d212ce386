//! The tables of commands: columns with their alignment, rows of cells. What tables have in common with templates.

use msdeform_lab::digits::three_digits;

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
    ($($cell:expr),* $(,)?) => { vec![$(ToString::to_string(&$cell)),*] };
}
pub use cells;

/// A table with named columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// Names of the columns, and whether they are aligned as numbers.
    pub columns: Vec<(String, bool)>,
    /// Cells, row by row. A row that ends early has empty cells at its end.
    pub rows: Vec<Vec<String>>,
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
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// A table from lines of cells, which are separated as columns are.
    pub(crate) fn parse(text: &str) -> Self {
        let (columns, rows) = text.split_once('\n').unwrap_or((text, ""));
        Self::new(columns)
            .with(rows.lines().map(|row| row.split(" | ").map(str::to_owned).collect()))
    }
}

/// Each item once, in the order in which they come first.
pub(crate) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    grouped(items.into_iter().map(|item| (item, ()))).into_iter().map(|(item, _)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cells_are_a_table() {
        let table = Table::parse("a | >b\nx | 1\ny");
        assert_eq!(table.columns, [("a".to_owned(), false), ("b".to_owned(), true)]);
        assert_eq!(table.rows, [cells!["x", 1], cells!["y"]]);
    }
}
