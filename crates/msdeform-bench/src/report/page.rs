//! What a report shows, before it is HTML or Markdown.

use std::collections::BTreeMap;

use crate::analyze::{Mark, Place, flop, roofline};
use crate::case::Label;
use crate::counters::{KernelCounters, Profiled};
use crate::overview::{overview, three_digits, time};
use crate::record::{Figure, Record, newest};
use crate::workload::{self, Sizes};
use crate::{Floors, Profile, Work};
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

/// One variant's time on one case.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The variant, and the clock where it matters.
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

/// One kernel's share of something, in percent.
#[derive(Clone, Debug)]
pub struct Share {
    /// The kernel and its case.
    pub name: String,
    /// Percent.
    pub percent: f64,
}

/// Shares of the same thing, kernel by kernel.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is shown.
    pub title: &'static str,
    /// Kernels in the order of the table.
    pub shares: Vec<Share>,
}

/// Everything a report shows.
#[derive(Clone, Debug)]
pub struct Page {
    /// The device and the records.
    pub title: String,
    /// Hardware and software, as the newest record says.
    pub environment: BTreeMap<String, String>,
    /// Best times by workload.
    pub times: Table,
    /// Times beside what the device's ceilings leave.
    pub floors: Table,
    /// Where the half-precision forward stands under the device's ceilings; empty without a profile.
    pub roofline: String,
    /// Hardware counters, where they were read.
    pub counters: Table,
    /// What share of the accesses hits, and what share of the wavefronts is lost to bank conflicts.
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
        let mut environment = last.device.facts.clone();
        let mut fact = |name: &str, value: String| environment.insert(name.to_owned(), value);
        fact("date", last.date.clone());
        fact("commit", last.provenance.commit.clone());
        fact("command", last.provenance.command.clone());
        fact("msdeform", format!("{} ({})", last.environment.msdeform, last.environment.rustc));
        fact("records", records.len().to_string());
        Some(Self {
            title: format!("msdeform on {}", last.device.name),
            environment,
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
            Cell::word(&kernel.kernel),
        ];
        row.extend(SHOWN_COUNTERS.iter().map(|(name, _, one)| {
            let value = kernel.get(name).map(|value| value / one);
            value.map_or_else(|| Cell::word("-"), |v| Cell::number(three_digits(v), v))
        }));
        row
    });
    Table { headings, rows: rows.collect() }
}

/// The best half-precision forward of each case, against the bytes it gathers and those it cannot avoid.
fn roofline_of(rows: &[crate::overview::Row], profile: &Profile) -> String {
    let best = rows.iter().filter_map(|row| row.best.get(DType::F16.name()));
    let marks: Vec<Mark> = best
        .filter(|best| best.direction == Direction::Forward.name())
        .filter_map(|best| Some((best, problem_of(best)?)))
        .flat_map(|(best, problem)| {
            let work = Work::of(&problem, Direction::Forward);
            let flop = flop(&problem, &work, Direction::Forward);
            let title = format!("{} {}: {}", best.workload, best.locations, time(best.median_us));
            let mark = |bytes: u64, is_hollow| Mark {
                flop_per_byte: flop / bytes as f64,
                tflop_per_s: flop / best.median_us * 1e-6,
                title: title.clone(),
                label: String::new(),
                is_below: false,
                is_hollow,
            };
            [mark(work.gathered_bytes, false), mark(work.compulsory_bytes, true)]
        })
        .collect();
    if marks.is_empty() {
        return String::new();
    }
    let legend = "full: against gathered bytes, empty: against compulsory bytes";
    roofline(("Forward in f16", legend), profile, &marks, Place::Page)
}

fn panels(profiled: &[Profiled]) -> Vec<Panel> {
    let hits = |kernel: &KernelCounters| kernel.get("l1_hit_percent");
    let conflicts = |kernel: &KernelCounters| {
        let wavefronts = kernel.get("l1_wavefronts").filter(|count| *count > 0.0)?;
        Some(100.0 * kernel.get("bank_conflicts")? / wavefronts)
    };
    let busy = |kernel: &KernelCounters| kernel.get("l1_percent");
    let panel = |title, share: &dyn Fn(&KernelCounters) -> Option<f64>| Panel {
        title,
        shares: profiled
            .iter()
            .flat_map(|p| p.kernels.iter().map(move |kernel| (&p.label, kernel)))
            .filter_map(|(label, kernel)| {
                let Label { workload, locations, dtype, .. } = label;
                let name = format!("{} on {workload} {locations} {dtype}", kernel.kernel);
                Some(Share { name, percent: share(kernel)? })
            })
            .collect(),
    };
    let all = [
        panel("Sectors found in L1", &hits),
        panel("L1 wavefronts lost to bank conflicts", &conflicts),
        panel("L1 data path busy", &busy),
    ];
    all.into_iter().filter(|panel| !panel.shares.is_empty()).collect()
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
    let mut groups: Vec<(String, Group)> = Vec::new();
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
        let bar = Bar {
            name: format!("{} ({}, {})", figure.variant, figure.timing.name(), figure.mode),
            us: figure.median_us,
            mad_us: figure.mad_us,
            rel_l2: figure.rel_l2,
            speedup: figure.speedup,
            dispatched: figure.dispatched,
        };
        match groups.iter_mut().find(|(known, _)| *known == title) {
            Some((_, group)) => group.bars.push(bar),
            None => {
                let floor_us =
                    profile.and_then(|p| floors_of(figure, p)).map(|floors| floors.l1_us);
                groups.push((title.clone(), Group { title, bars: vec![bar], floor_us }));
            }
        }
    }
    for (_, group) in &mut groups {
        group.bars.sort_by(|a, b| b.us.total_cmp(&a.us));
    }
    groups.into_iter().map(|(_, group)| group).collect()
}
