//! The short table: one row per workload and direction, the best exact figure of each format.

use std::collections::BTreeMap;
use std::fmt::Write;

use msdeform::DType;

use crate::record::Figure;
use crate::workload;

/// One line of the short table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Workload, locations, layout, direction and sizes are those of every figure in the row.
    pub workload: String,
    /// Images.
    pub batch: usize,
    /// Queries of an image.
    pub queries: usize,
    /// How locations are drawn.
    pub locations: String,
    /// Order of the values.
    pub layout: String,
    /// Which way.
    pub direction: String,
    /// Best figure within the accuracy contract, by format.
    pub best: BTreeMap<String, Figure>,
}

/// Groups the figures of one device. Figures without a verified error within the contract of their
/// format do not compete: a fast wrong answer is no figure.
#[must_use]
pub fn overview(figures: &[Figure]) -> Vec<Row> {
    let mut rows: BTreeMap<_, Row> = BTreeMap::new();
    for figure in figures.iter().filter(|figure| is_exact(figure)) {
        // Formats within a row, the rest sorted as the workloads are listed, forward first.
        let key = (
            workload::table_position(&figure.workload),
            figure.workload.clone(),
            figure.locations.clone(),
            figure.layout.clone(),
            figure.direction != "forward",
            figure.batch,
            figure.queries,
        );
        let row = rows.entry(key).or_insert_with(|| Row {
            workload: figure.workload.clone(),
            batch: figure.batch,
            queries: figure.queries,
            locations: figure.locations.clone(),
            layout: figure.layout.clone(),
            direction: figure.direction.clone(),
            best: BTreeMap::new(),
        });
        let best = row.best.entry(figure.dtype.clone()).or_insert_with(|| figure.clone());
        if figure.median_us < best.median_us {
            *best = figure.clone();
        }
    }
    rows.into_values().collect()
}

fn is_exact(figure: &Figure) -> bool {
    let bound = figure.dtype.parse::<DType>().map_or(0.0, DType::rel_l2_bound);
    figure.rel_l2 <= bound
}

/// The figures with the most threads of a device: a table shows the machine at its best.
#[must_use]
pub fn most_threads(figures: &[Figure], device: &str) -> Vec<Figure> {
    let of_device = || figures.iter().filter(|figure| figure.device == device);
    let most = of_device().map(|figure| figure.threads).max().flatten();
    of_device().filter(|figure| figure.threads == most).cloned().collect()
}

/// A time with three significant digits and its unit.
#[must_use]
pub fn time(time_us: f64) -> String {
    let (number, unit) = match time_us {
        t if t < 1e3 => (t, "us"),
        t if t < 1e6 => (t / 1e3, "ms"),
        t => (t / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(number))
}

/// Three significant digits, without an exponent.
#[must_use]
pub fn three_digits(number: f64) -> String {
    match number.abs() {
        n if n < 9.995 => format!("{number:.2}"),
        n if n < 99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// The short table as Markdown.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| workload | N | Lq | locations | direction | f32 | f16 | bf16 | f32 against baseline |\n\
         |---|--:|--:|---|---|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let cell = |dtype: &str| {
            row.best.get(dtype).map_or_else(|| "-".to_owned(), |best| time(best.median_us))
        };
        let speedup = row
            .best
            .get("f32")
            .and_then(|best| best.speedup)
            .map_or_else(|| "-".to_owned(), |speedup| format!("{speedup:.1}x"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {speedup} |",
            row.workload,
            row.batch,
            row.queries,
            row.locations,
            row.direction,
            cell("f32"),
            cell("f16"),
            cell("bf16"),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (time_us, text) in [
            (4.25, "4.25 us"),
            (99.96, "100 us"),
            (812.4, "812 us"),
            (12_340.0, "12.3 ms"),
            (1_500_000.0, "1.50 s"),
        ] {
            assert_eq!(time(time_us), text);
        }
    }
}
