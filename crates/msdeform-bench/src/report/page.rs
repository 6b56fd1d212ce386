//! What a report shows, before it is HTML or Markdown.

use std::collections::{BTreeMap, BTreeSet};

use crate::analyze::{Mark, Place, flop, roofline};
use crate::case::Label;
use crate::counters::{KernelCounters, Profiled};
use crate::device::named::id_in;
use crate::overview::{overview, three_digits, time};
use crate::record::{Figure, Record, newest};
use crate::workload::{self, Sizes};
use crate::{Floors, Profile, Work, ladder};
use msdeform::{DType, Direction, Problem};

/// A cell: what is read, and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What people read.
    pub text: String,
    /// What a column of numbers is sorted by.
    pub number: Option<f64>,
}

impl Cell {
    fn word(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    fn time(us: f64) -> Self {
        Self { text: time(us), number: Some(us) }
    }

    fn number(text: String, number: f64) -> Self {
        Self { text, number: Some(number) }
    }
}

/// A table with named columns; `true` for numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names of the columns, and whether they hold numbers.
    pub headings: Vec<(&'static str, bool)>,
    /// Cells, row by row.
    pub rows: Vec<Vec<Cell>>,
}

/// One setting of a variant's knobs.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The knobs, as `NAME=VALUE`.
    pub name: String,
    /// Median.
    pub us: f64,
}

/// One variant's time on one case.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The variant, and the clock and mode where the case has several.
    pub name: String,
    /// Median.
    pub us: f64,
    /// Median absolute deviation.
    pub mad_us: f64,
    /// Against the reference.
    pub rel_l2: f64,
    /// Time of the baseline over this one's.
    pub speedup: Option<f64>,
    /// Whether a call gets it without naming a variant.
    pub dispatched: bool,
    /// The same with knobs set, fastest first.
    pub settings: Vec<Setting>,
}

/// The variants of one case, fastest last.
#[derive(Clone, Debug)]
pub struct Group {
    /// The case.
    pub title: String,
    /// Slowest first, as a ladder.
    pub bars: Vec<Bar>,
    /// The L1 floor, where the device has a profile and the case one.
    pub floor_us: Option<f64>,
}

/// What a panel shows of a kernel, each in percent: of its sectors, of its wavefronts, of the time.
pub const SHARES: [&str; 3] =
    ["sectors found in L1", "lost to bank conflicts", "L1 data path busy"];

/// The kernels of one case, with knobs as they set themselves.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The case.
    pub title: String,
    /// The kernels, and [`SHARES`] of each where they were read.
    pub kernels: Vec<(String, [Option<f64>; 3])>,
}

/// Everything a report shows.
#[derive(Clone, Debug)]
pub struct Page {
    /// The device and the records.
    pub title: String,
    /// Hardware and software, as the newest record says.
    pub environment: BTreeMap<String, String>,
    /// Where every number comes from.
    pub records: Table,
    /// Best times by workload.
    pub times: Table,
    /// Times beside what the device's ceilings leave.
    pub floors: Table,
    /// Where the half-precision forward stands under the device's ceilings; empty without a profile.
    pub roofline: String,
    /// Hardware counters, where they were read.
    pub counters: Table,
    /// [`SHARES`], case by case.
    pub panels: Vec<Panel>,
    /// Every variant's error.
    pub errors: Table,
    /// Every case with all its variants.
    pub groups: Vec<Group>,
}

impl Page {
    /// What records of one device say, oldest first. `None` if they hold no measurement.
    #[must_use]
    pub fn of(
        records: &[Record],
        profile: Option<&Profile>,
        profiled: &[Profiled],
    ) -> Option<Self> {
        let last = records.iter().rev().find(|record| !record.measurements.is_empty())?;
        let figures = newest(records);
        let rows = overview(&figures);
        let figures = without_repeats(figures, |f| (&f.workload, &f.dtype, &f.variant));
        let profiled = &without_repeats(profiled.to_vec(), |Profiled { label, .. }| {
            (&label.workload, &label.dtype, &label.variant)
        });
        let mut environment = last.device.facts.clone();
        let mut fact = |name: &str, value: String| environment.insert(name.to_owned(), value);
        fact("date", last.date.clone());
        fact("commit", last.provenance.commit.clone());
        fact("command", last.provenance.command.clone());
        fact("msdeform", format!("{} ({})", last.environment.msdeform, last.environment.rustc));
        Some(Self {
            title: format!("msdeform on {}", last.device.name),
            environment,
            records: provenance(records),
            times: times(&rows),
            floors: profile.map_or_else(Table::default, |profile| floors(&rows, profile)),
            roofline: profile.map_or_else(String::new, |profile| roofline_of(&rows, profile)),
            counters: counters(profiled),
            panels: panels(profiled),
            errors: errors(&figures),
            groups: groups(&figures, profile),
        })
    }
}

/// Without settings that a rung of the ladder has by itself, where it was measured by its plain name too: the same
/// code under two names.
fn without_repeats<T>(
    mut items: Vec<T>,
    names: impl Fn(&T) -> (&String, &String, &String),
) -> Vec<T> {
    let variants: BTreeSet<String> = items.iter().map(|item| names(item).2.clone()).collect();
    items.retain(|item| {
        let (workload, dtype, variant) = names(item);
        let is_ladder = workload == ladder::WORKLOAD && dtype == ladder::DTYPE.name();
        let own = if is_ladder { ladder::own_name(variant) } else { variant.clone() };
        own == *variant || !variants.contains(&own)
    });
    items
}

fn provenance(records: &[Record]) -> Table {
    let headings =
        vec![("date", false), ("commit", false), ("measurements", true), ("command", false)];
    let rows = records.iter().rev().map(|record| {
        let count = record.measurements.len();
        vec![
            Cell::word(&record.date),
            Cell::word(record.provenance.commit.chars().take(9).collect::<String>()),
            Cell::number(count.to_string(), count as f64),
            Cell::word(&record.provenance.command),
        ]
    });
    Table { headings, rows: rows.collect() }
}

fn times(rows: &[crate::overview::Row]) -> Table {
    let headings = vec![
        ("workload", false),
        ("N", true),
        ("Lq", true),
        ("locations", false),
        ("layout", false),
        ("direction", false),
        ("f32", true),
        ("f16", true),
        ("bf16", true),
        ("f32 against baseline", true),
    ];
    let missing = || Cell::word("-");
    let rows = rows.iter().map(|row| {
        let cell = |dtype: DType| {
            row.best.get(dtype.name()).map_or_else(missing, |best| Cell::time(best.median_us))
        };
        let speedup = row.best.get(DType::F32.name()).and_then(|best| best.speedup);
        vec![
            Cell::word(&row.workload),
            Cell::number(row.batch.to_string(), row.batch as f64),
            Cell::number(row.queries.to_string(), row.queries as f64),
            Cell::word(&row.locations),
            Cell::word(&row.layout),
            Cell::word(&row.direction),
            cell(DType::F32),
            cell(DType::F16),
            cell(DType::Bf16),
            speedup.map_or_else(missing, |speedup| Cell::number(format!("{speedup:.1}x"), speedup)),
        ]
    });
    Table { headings, rows: rows.collect() }
}

fn floors_of(figure: &Figure, profile: &Profile) -> Option<Floors> {
    if figure.direction != Direction::Forward.name() {
        return None;
    }
    Floors::of(&problem_of(figure)?, profile)
}

/// The call that was timed, where its workload is built in.
fn problem_of(figure: &Figure) -> Option<Problem> {
    let sizes = Sizes { batch: Some(figure.batch), queries: Some(figure.queries) };
    let (dtype, layout) = (figure.dtype.parse().ok()?, figure.layout.parse().ok()?);
    workload::find(&figure.workload)?.problem(dtype, layout, sizes).ok()
}

fn floors(rows: &[crate::overview::Row], profile: &Profile) -> Table {
    let headings = vec![
        ("workload", false),
        ("locations", false),
        ("layout", false),
        ("dtype", false),
        ("time", true),
        ("all from L1", true),
        ("none from L1", true),
        ("DRAM once", true),
        ("L1 floor / time", true),
    ];
    let lines = rows.iter().flat_map(|row| row.best.values()).filter_map(|best| {
        let floors = floors_of(best, profile)?;
        let share = 100.0 * floors.l1_us / best.median_us;
        Some(vec![
            Cell::word(&best.workload),
            Cell::word(&best.locations),
            Cell::word(&best.layout),
            Cell::word(&best.dtype),
            Cell::time(best.median_us),
            Cell::time(floors.l1_us),
            Cell::time(floors.without_l1_us),
            Cell::time(floors.dram_us),
            Cell::number(format!("{share:.0} %"), share),
        ])
    });
    Table { headings, rows: lines.collect() }
}

/// What is shown of each kernel: name of the counter, heading, how many of the unit make one.
const SHOWN_COUNTERS: &[(&str, &str, f64)] = &[
    ("l1_wavefronts", "L1 wavefronts, M", 1e6),
    ("l1_percent", "of L1's peak, %", 1.0),
    ("bank_conflicts", "bank conflicts, M", 1e6),
    ("l1_hit_percent", "L1 hits, %", 1.0),
    ("l2_hit_percent", "L2 hits, %", 1.0),
    ("dram_bytes", "DRAM, MB", 1e6),
    ("issue_percent", "issue slots, %", 1.0),
    ("occupancy_percent", "warps, %", 1.0),
    ("registers", "registers", 1.0),
];

fn counters(profiled: &[Profiled]) -> Table {
    let mut headings =
        vec![("workload", false), ("locations", false), ("dtype", false), ("kernel", false)];
    headings.extend(SHOWN_COUNTERS.iter().map(|(_, heading, _)| (*heading, true)));
    let kernels = profiled.iter().flat_map(|p| p.kernels.iter().map(move |kernel| (p, kernel)));
    let rows = kernels.map(|(Profiled { label, .. }, kernel)| {
        let mut row = vec![
            Cell::word(&label.workload),
            Cell::word(&label.locations),
            Cell::word(&label.dtype),
            Cell::word(name_of(label, kernel)),
        ];
        row.extend(SHOWN_COUNTERS.iter().map(|(name, _, one)| {
            let value = kernel.get(name).map(|value| value / one);
            value.map_or_else(|| Cell::word("-"), |v| Cell::number(three_digits(v), v))
        }));
        row
    });
    Table { headings, rows: rows.collect() }
}

/// A kernel, with the knobs that were set.
fn name_of(label: &Label, kernel: &KernelCounters) -> String {
    let knobs = label.variant.strip_prefix(id_in(&label.variant)).unwrap_or_default();
    format!("{}{knobs}", kernel.kernel)
}

/// The best half-precision forward of each case, against the bytes it gathers and those it cannot avoid.
fn roofline_of(rows: &[crate::overview::Row], profile: &Profile) -> String {
    let best = rows.iter().filter_map(|row| row.best.get(DType::F16.name()));
    let mut marks: Vec<Mark> = Vec::new();
    for best in best.filter(|best| best.direction == Direction::Forward.name()) {
        let Some(problem) = problem_of(best) else { continue };
        let work = Work::of(&problem, Direction::Forward);
        let flop = flop(&problem, &work, Direction::Forward);
        let Figure { workload, locations, layout, .. } = best;
        let is_named = marks.iter().any(|mark| mark.label == *workload);
        let mark = |bytes: u64, is_hollow| Mark {
            flop_per_byte: flop / bytes as f64,
            tflop_per_s: flop / best.median_us * 1e-6,
            title: format!("{workload} {locations} {layout}: {}", time(best.median_us)),
            // Once: its other marks stand at the same height or in the same column.
            label: if is_hollow && !is_named { workload.clone() } else { String::new() },
            is_hollow,
        };
        let both = [mark(work.gathered_bytes, false), mark(work.compulsory_bytes, true)];
        marks.extend(both);
    }
    if marks.is_empty() {
        return String::new();
    }
    let legend =
        "full: against gathered bytes, empty: against compulsory bytes; a column for each workload";
    roofline(("Forward in f16", legend), profile, &marks, Place::Page)
}

fn panels(profiled: &[Profiled]) -> Vec<Panel> {
    let shares = |kernel: &KernelCounters| {
        let wavefronts = kernel.get("l1_wavefronts").filter(|count| *count > 0.0);
        let conflicts =
            kernel.get("bank_conflicts").zip(wavefronts).map(|(c, all)| 100.0 * c / all);
        [kernel.get("l1_hit_percent"), conflicts, kernel.get("l1_percent")]
    };
    let mut panels: Vec<Panel> = Vec::new();
    // Settings stand in the table: beside each other they hide the variants.
    for Profiled { label, kernels } in profiled.iter().filter(|p| is_own(&p.label.variant)) {
        let Label { workload, locations, layout, dtype, direction, .. } = label;
        let title = format!("{workload}, {locations} {layout} {dtype} {direction}");
        let found = kernels.iter().map(|kernel| (kernel.kernel.clone(), shares(kernel)));
        let found = found.filter(|(_, shares)| shares.iter().any(Option::is_some));
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.kernels.extend(found),
            None => panels.push(Panel { title, kernels: found.collect() }),
        }
    }
    panels.retain(|panel| !panel.kernels.is_empty());
    panels
}

/// Whether a variant runs with its own knobs.
fn is_own(variant: &str) -> bool {
    id_in(variant) == variant
}

fn errors(figures: &[Figure]) -> Table {
    let headings = vec![
        ("variant", false),
        ("dtype", false),
        ("cases", true),
        ("worst rel L2", true),
        ("bound", true),
    ];
    let mut worst: BTreeMap<(&str, &str), (usize, f64)> = BTreeMap::new();
    for figure in figures.iter().filter(|figure| !figure.rel_l2.is_nan()) {
        let entry = worst.entry((&figure.variant, &figure.dtype)).or_insert((0, 0.0));
        *entry = (entry.0 + 1, entry.1.max(figure.rel_l2));
    }
    let rows = worst.into_iter().map(|((variant, dtype), (cases, error))| {
        let bound = dtype.parse::<DType>().map_or(0.0, DType::rel_l2_bound);
        vec![
            Cell::word(variant),
            Cell::word(dtype),
            Cell::number(cases.to_string(), cases as f64),
            Cell::number(format!("{error:.1e}"), error),
            Cell::number(format!("{bound:.0e}"), bound),
        ]
    });
    Table { headings, rows: rows.collect() }
}

fn groups(figures: &[Figure], profile: Option<&Profile>) -> Vec<Group> {
    let mut cases: Vec<(String, Vec<&Figure>)> = Vec::new();
    for figure in figures {
        let threads = figure.threads.map_or_else(String::new, |count| format!(", {count} threads"));
        let title = format!(
            "{} N={} Lq={}, {} {} {} {}{threads}",
            figure.workload,
            figure.batch,
            figure.queries,
            figure.locations,
            figure.layout,
            figure.dtype,
            figure.direction
        );
        match cases.iter_mut().find(|(known, _)| *known == title) {
            Some((_, of_case)) => of_case.push(figure),
            None => cases.push((title, vec![figure])),
        }
    }
    cases.into_iter().map(|(title, of_case)| group(title, &of_case, profile)).collect()
}

fn group(title: String, figures: &[&Figure], profile: Option<&Profile>) -> Group {
    let way = |figure: &Figure| format!(" ({}, {})", figure.timing.name(), figure.mode);
    let first = figures.first().map_or_else(String::new, |figure| way(figure));
    let is_alike = figures.iter().all(|figure| way(figure) == first);
    let mut bars: Vec<Bar> = Vec::new();
    let (own, set): (Vec<&Figure>, Vec<&Figure>) =
        figures.iter().partition(|figure| is_own(&figure.variant));
    let named = |figure: &Figure, variant: &str| {
        if is_alike { variant.to_owned() } else { format!("{variant}{}", way(figure)) }
    };
    let bar = |figure: &Figure| Bar {
        name: named(figure, &figure.variant),
        us: figure.median_us,
        mad_us: figure.mad_us,
        rel_l2: figure.rel_l2,
        speedup: figure.speedup,
        dispatched: figure.dispatched,
        settings: Vec::new(),
    };
    bars.extend(own.into_iter().map(bar));
    for figure in set {
        let id = id_in(&figure.variant);
        let name = named(figure, id);
        match bars.iter_mut().find(|bar| bar.name == name) {
            Some(bar) => {
                let knobs = figure.variant[id.len()..].trim_start_matches(':').to_owned();
                bar.settings.push(Setting { name: knobs, us: figure.median_us });
            }
            // Only ever timed with knobs set.
            None => bars.push(bar(figure)),
        }
    }
    bars.sort_by(|a, b| b.us.total_cmp(&a.us));
    for bar in &mut bars {
        bar.settings.sort_by(|a, b| a.us.total_cmp(&b.us));
    }
    let floor_us = figures.first().and_then(|figure| floors_of(figure, profile?));
    Group {
        title: if is_alike { title + &first } else { title },
        bars,
        floor_us: floor_us.map(|floors| floors.l1_us),
    }
}
