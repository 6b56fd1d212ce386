//! The ladder as text: a line of `bench --ladder`, and the tables of docs/LADDER.md and the pages.

use msdeform::ValueLayout;
use msdeform_cuda_lab::claim;
use msdeform_lab::Locations;
use msdeform_lab::counters::KernelCounters;
use msdeform_lab::device::named::KNOB_SEPARATOR;
use msdeform_lab::digits::three_digits;

use super::{Cell, LAYOUTS, LOCATIONS, Row};
use crate::table::{Column, Table, or_dash};

const PLAIN: ValueLayout = LAYOUTS[0];
const BORDERED: ValueLayout = LAYOUTS[1];
const UNIFORM: Locations = LOCATIONS[0];
const LOCAL: Locations = LOCATIONS[1];

/// A number of a cell, or a dash.
fn number(value: Option<f64>) -> String {
    or_dash(value.filter(|value| value.is_finite()), three_digits)
}

pub(super) fn speedup(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.2}x"))
}

/// Thousands and millions by letter.
pub(super) fn count(value: Option<f64>) -> String {
    or_dash(value, |value| match value {
        value if value < 1e3 => format!("{value:.0}"),
        value if value < 1e6 => format!("{} k", three_digits(value * 1e-3)),
        value => format!("{} M", three_digits(value * 1e-6)),
    })
}

/// The largest error of any cell. One that is no number stays one.
pub(super) fn worst_error(row: &Row) -> String {
    let errors = row.cells.values().map(|cell| cell.measurement.rel_l2);
    let worst = errors
        .fold(0.0, |worst, error| if error > worst || error.is_nan() { error } else { worst });
    or_dash(Some(worst).filter(|error| error.is_finite()), |error| format!("{error:.1e}"))
}

pub(super) fn percent(value: Option<f64>) -> String {
    or_dash(value, |percent| format!("{percent:.0} %"))
}

/// A time, with that after preparation in brackets where there is one.
fn time_in(row: &Row, layout: ValueLayout, locations: Locations) -> String {
    let cell = row.cell(layout, locations);
    let after = cell.and_then(|cell| cell.measurement.us_after_preparation);
    let after = after.map_or_else(String::new, |us| format!(" ({})", three_digits(us)));
    format!("{}{after}", number(cell.map(Cell::us)))
}

/// Of the local locations without the border.
fn main<T>(row: &Row, value: impl Fn(&Cell) -> Option<T>) -> Option<T> {
    value(row.cell(PLAIN, LOCAL)?)
}

fn throughput(row: &Row) -> String {
    number(main(row, |cell| Some(cell.measurement.throughput().tflop_per_s)))
}

/// A line of `bench --ladder`: times without the border but for one, the rest of the local locations.
pub const COLUMNS: [Column<Row>; 10] = [
    ("rung", |row| row.name.clone()),
    ("source", |row| row.spec.origin.to_owned()),
    (">us uniform", |row| time_in(row, PLAIN, UNIFORM)),
    (">us local", |row| time_in(row, PLAIN, LOCAL)),
    (">us local, border", |row| time_in(row, BORDERED, LOCAL)),
    (">speed-up", |row| speedup(main(row, |cell| cell.speedup))),
    (">TFLOP/s", throughput),
    (">L1 hit", |row| percent(main(row, |cell| cell.counter("l1_hit_percent")))),
    (">bank conflicts", |row| count(main(row, Cell::bank_conflicts))),
    (">rel L2", worst_error),
];

/// Everything as Markdown, a table for each document, with what it calls a rung and its claim in a last column. Names
/// link to their pages, as seen from docs/LADDER.md.
pub(crate) fn markdown(rows: &[Row]) -> String {
    // The first column is linked, the source is the table's title, and times with a border are on the pages.
    let is_shown = |heading: &str| !["rung", "source", ">us local, border"].contains(&heading);
    let shown: Vec<_> = COLUMNS.iter().filter(|(heading, _)| is_shown(heading)).collect();
    let headings = ["rung"].into_iter().chain(shown.iter().map(|(heading, _)| *heading));
    let columns: Vec<&str> = headings.chain(["the document"]).collect();
    let of_document = |rows: &[Row]| {
        let (document, _) = document_of(&rows[0]);
        let cells = rows.iter().map(|row| {
            let cells = shown.iter().map(|(_, cell)| cell(row));
            std::iter::once(linked(row)).chain(cells).chain([claim_of(row)]).collect()
        });
        format!("**{document}**\n\n{}", table(&columns, cells))
    };
    let documents = rows.chunk_by(|a, b| document_of(a).0 == document_of(b).0);
    documents.map(of_document).collect::<Vec<_>>().join("\n")
}

/// The rung's name, linked to its page. A setting is below its rung.
fn linked(row: &Row) -> String {
    let setting = setting_of(row).map(|setting| format!("·{NO_BREAK_SPACE}{setting}"));
    format!("[{}](kernels/{}.md)", setting.as_ref().unwrap_or(&row.name), row.spec.id)
}

/// What the document claims, and its name of the rung unless the first column has the same.
fn claim_of(row: &Row) -> String {
    let (_, name) = document_of(row);
    match claim(row.spec.id).filter(|_| row.name == row.spec.id) {
        Some(claim) if row.spec.id.ends_with(&name.replace(' ', "_")) => claim.to_owned(),
        Some(claim) => format!("{name}: {claim}"),
        None => String::new(),
    }
}

/// A row's document, and what that calls it.
fn document_of(row: &Row) -> (&'static str, &'static str) {
    let source = row.spec.origin;
    source.split_once(": ").unwrap_or((source, ""))
}

/// The knobs that a row sets otherwise than its variant does.
fn setting_of(row: &Row) -> Option<&str> {
    row.name.strip_prefix(row.spec.id)?.strip_prefix(KNOB_SEPARATOR)
}

/// Keeps a number and its unit on one line, where a narrow table would break them.
const NO_BREAK_SPACE: &str = "\u{a0}";

/// A table whose numbers stay on one line.
fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    // One number; lists of them may break.
    let is_number =
        |cell: &str| cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.contains(", ");
    let unbroken = |cell: String| match is_number(&cell) {
        true => cell.replace(' ', NO_BREAK_SPACE).into(),
        false => cell.into(),
    };
    let columns = columns.join(" | ").replace("rel L2", &["rel.", "error"].join(NO_BREAK_SPACE));
    let rows = rows.map(|row| row.into_iter().map(unbroken).collect());
    Table::new(&columns).with(rows).markdown()
}

/// The times of every setting in both layouts.
const TIMES: [Column<Row>; 9] = [
    ("", |row| setting_of(row).unwrap_or("as it is").to_owned()),
    (">us local", |row| time_in(row, PLAIN, LOCAL)),
    (">us uniform", |row| time_in(row, PLAIN, UNIFORM)),
    (">local, border", |row| time_in(row, BORDERED, LOCAL)),
    (">uniform, border", |row| time_in(row, BORDERED, UNIFORM)),
    (">speed-up, local", |row| speedup(main(row, |cell| cell.speedup))),
    (">uniform", |row| speedup(row.cell(PLAIN, UNIFORM).and_then(|cell| cell.speedup))),
    (">TFLOP/s", throughput),
    (">rel L2", worst_error),
];

/// What the page of one variant shows as measured: its times, and under them the counters of its kernels.
pub(crate) fn page_markdown(rows: &[Row], id: &str) -> String {
    let of_variant: Vec<&Row> = rows.iter().filter(|row| row.spec.id == id).collect();
    if of_variant.is_empty() {
        return "Not measured yet.\n".to_owned();
    }
    let times = of_variant.iter().map(|row| TIMES.iter().map(|(_, cell)| cell(row)).collect());
    table(&TIMES.map(|(heading, _)| heading), times) + &counters_markdown(&of_variant)
}

/// Where the columns of a page's counters are explained, seen from the page.
const COUNTERS_PAGE: &str = "../LADDER.md#counters";

/// What caches move at a time.
const SECTOR_BYTES: f64 = 32.0;

const COUNTERS: [Column<KernelCounters>; 9] = [
    (">us", |kernel| number(kernel.get("time_ns").map(|ns| ns * 1e-3))),
    (">instructions", |kernel| count(kernel.get("instructions"))),
    (">issue slots", |kernel| percent(kernel.get("issue_percent"))),
    (">warps", |kernel| percent(kernel.get("occupancy_percent"))),
    (">wavefronts (shared memory)", |kernel| {
        let [all, shared] =
            ["l1_wavefronts", "shared_wavefronts"].map(|name| count(kernel.get(name)));
        format!("{all} ({shared})")
    }),
    (">data path", |kernel| percent(kernel.get("l1_percent"))),
    (">conflicts", |kernel| count(kernel.get("bank_conflicts"))),
    (">L1 hits", |kernel| percent(kernel.get("l1_hit_percent"))),
    (">MB through L2, DRAM", |kernel| {
        let l2_bytes = kernel.get("l2_sectors").map(|sectors| sectors * SECTOR_BYTES);
        let [l2, dram] = [l2_bytes, kernel.get("dram_bytes")]
            .map(|bytes| number(bytes.map(|bytes| bytes * 1e-6)));
        format!("{l2}, {dram}")
    }),
];

/// The counters of some rows, for local locations without the border; empty if none were read.
fn counters_markdown(rows: &[&Row]) -> String {
    let mut found: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let kernels = row.cell(PLAIN, LOCAL).map_or(&[][..], |cell| &cell.kernels);
        for kernel in kernels {
            let name = match (setting_of(row), kernels) {
                (None, [_]) => "as it is".to_owned(),
                (None, _) => kernel.kernel.clone(),
                (Some(setting), [_]) => setting.to_owned(),
                (Some(setting), _) => format!("{}, {setting}", kernel.kernel),
            };
            let cells = COUNTERS.iter().map(|(_, cell)| cell(kernel));
            found.push(std::iter::once(name).chain(cells).collect());
        }
    }
    if found.is_empty() {
        return String::new();
    }
    let headings = [&[""][..], &COUNTERS.map(|(heading, _)| heading)].concat();
    format!(
        "\nLocal locations without the border, by hardware counters ([what they count]({COUNTERS_PAGE})):\n\n{}",
        table(&headings, found.into_iter())
    )
}
