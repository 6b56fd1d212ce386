//! What a report shows, before it is HTML or Markdown.

use std::collections::{BTreeMap, BTreeSet};

use msdeform::{DType, Direction, Problem};
use msdeform_bench::analyze::flop;
use msdeform_bench::counters::{Counted, KernelCounters};
use msdeform_bench::digits::time;
use msdeform_bench::record::{Figure, Record, newest};
use msdeform_bench::{Ceilings, Floors};
use msdeform_devices::Work;
use msdeform_devices::device::named::id_in;
use msdeform_devices::workload::Label;
use msdeform_devices::workload::{self, Sizes};

use super::tables;
use crate::ladder;
use crate::overview::{self, overview};
use crate::roofline::{Mark, Place, roofline};
use crate::table::Table;

/// One setting of a variant's knobs, as `NAME=VALUE`.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) us: f64,
}

/// One variant's time on one case.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    /// The variant, and the clock and mode where the case has several.
    pub(super) name: String,
    pub(super) us: f64,
    pub(super) mad_us: f64,
    pub(super) rel_l2: f64,
    /// Time of the baseline over this one's.
    pub(super) speedup: Option<f64>,
    pub(super) dispatched: bool,
    /// The same with knobs set, fastest first.
    pub(super) settings: Vec<Setting>,
}

/// The variants of one case, slowest first, as a ladder.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) workload: String,
    pub(super) dtype: String,
    /// The rest of the case.
    pub(super) title: String,
    pub(super) bars: Vec<Bar>,
    /// The L1 floor, where the device has ceilings and the case one.
    pub(super) floor_us: Option<f64>,
    /// Whether it is the case of the ladder.
    is_ladder: bool,
}

/// A figure to begin with.
#[derive(Clone, Debug)]
pub(super) struct Headline {
    /// With its unit.
    pub(super) figure: String,
    pub(super) what: String,
}

/// The dispatched variant on a workload and dtype, compared with the baseline.
#[derive(Clone, Debug)]
pub(super) struct Gain {
    pub(super) workload: String,
    pub(super) dtype: String,
    pub(super) us: f64,
    pub(super) baseline_us: f64,
    /// The time of the gather through L1 alone, where that is known.
    pub(super) floor_us: Option<f64>,
}

/// The largest error of a dispatched variant in a dtype, compared with the bound.
#[derive(Clone, Debug)]
pub(super) struct ErrorShare {
    pub(super) variant: String,
    pub(super) dtype: String,
    pub(super) rel_l2: f64,
    pub(super) bound: f64,
}

/// What a panel shows of a kernel, each in percent: of its sectors, of its wavefronts, of the time.
pub(super) const SHARES: [&str; 3] =
    ["sectors found in L1", "lost to bank conflicts", "L1 data path busy"];

/// The kernels of one case, with knobs as they set themselves.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    /// Whether it shows every rung of the ladder, not dispatched variants.
    pub(super) is_ladder: bool,
    /// The kernels, and [`SHARES`] of each where they were read.
    pub(super) kernels: Vec<(String, [Option<f64>; 3])>,
}

/// Everything a report shows.
#[derive(Clone, Debug)]
pub struct Page {
    /// The device.
    pub(super) title: String,
    /// How much was measured, when, and of which sources.
    pub(super) subtitle: String,
    pub(super) headlines: Vec<Headline>,
    /// Every workload as it is usually called, by direction.
    pub(super) gains: Vec<(Direction, Vec<Gain>)>,
    /// The half-precision forward under the device's ceilings; empty without them.
    pub(super) roofline: String,
    pub(super) error_shares: Vec<ErrorShare>,
    pub(super) panels: Vec<Panel>,
    /// Best times by workload, and the floors that the device's ceilings imply.
    pub(super) times: Table,
    /// Every variant's error.
    pub(super) errors: Table,
    /// Hardware counters, where they were read.
    pub(super) counters: Table,
    /// Every case with all its variants.
    pub(super) groups: Vec<Group>,
    /// Where every number comes from.
    pub(super) runs: Table,
    /// Hardware and software of the newest record.
    pub(super) environment: BTreeMap<String, String>,
}

impl Page {
    /// What records of one device say, oldest first. `None` if they hold no measurement.
    #[must_use]
    pub fn of(
        records: &[Record],
        ceilings: Option<&Ceilings>,
        counted: &[Counted],
    ) -> Option<Self> {
        let last = records.iter().rev().find(|record| !record.measurements.is_empty())?;
        let figures = newest(records);
        let rows = overview(&figures);
        let figures = without_repeats(figures, |f| (&f.workload, &f.dtype, &f.variant));
        let counted = &without_repeats(counted.to_vec(), |Counted { label, .. }| {
            (&label.workload, &label.dtype, &label.variant)
        });
        let mut environment = last.device.facts.clone();
        let mut fact = |name: &str, value: String| environment.insert(name.to_owned(), value);
        fact("date", last.date.clone());
        fact("msdeform", format!("{} ({})", last.environment.msdeform, last.environment.rustc));
        let gains = gains(&rows, ceilings);
        let error_shares = error_shares(&figures);
        Some(Self {
            title: format!("msdeform on {}", last.device.name),
            subtitle: subtitle(records, figures.len()),
            headlines: headlines(&gains, &error_shares),
            gains,
            roofline: ceilings.map_or_else(String::new, |ceilings| roofline_of(&rows, ceilings)),
            error_shares,
            panels: panels(counted, &figures),
            times: tables::times(&rows, ceilings),
            errors: tables::errors(&figures),
            counters: tables::counters(counted),
            groups: groups(&figures, ceilings),
            runs: tables::runs(records),
            environment,
        })
    }

    /// The ladder, where it was climbed on this device: without the border, as trained models draw locations.
    pub(super) fn ladder(&self) -> Option<&Group> {
        self.groups.iter().find(|group| group.is_ladder)
    }
}

fn subtitle(records: &[Record], figures: usize) -> String {
    let mut commits: Vec<String> = records.iter().flat_map(Record::commits).collect();
    commits.sort_unstable();
    commits.dedup();
    let days = records.iter().filter_map(|record| record.date.get(..10));
    let day = days.max().unwrap_or_default();
    let commits = match &commits[..] {
        [commit] => format!("commit {commit}"),
        several => format!("{} commits", several.len()),
    };
    format!("{figures} figures of {day}, {commits}")
}

/// Whether a row has the first layout and the first locations of its workload.
fn is_usual(row: &overview::Row) -> bool {
    workload::find(&row.workload).is_some_and(|found| {
        let (layout, locations) = (found.layouts.first(), found.locations.first());
        layout.is_some_and(|layout| layout.name() == row.layout)
            && locations.is_some_and(|locations| locations.name() == row.locations)
    })
}

fn gains(rows: &[overview::Row], ceilings: Option<&Ceilings>) -> Vec<(Direction, Vec<Gain>)> {
    let gain = |best: &Figure| {
        Some(Gain {
            workload: best.workload.clone(),
            dtype: best.dtype.clone(),
            us: best.median_us,
            baseline_us: best.median_us * best.speedup?,
            floor_us: ceilings.and_then(|c| floors_of(best, c)).map(|floors| floors.l1_us),
        })
    };
    let of = |direction: Direction| {
        let rows =
            rows.iter().filter(|row| is_usual(row)).filter(|row| row.direction == direction.name());
        let formats = |row: &overview::Row| {
            let best = DType::FAST.iter().filter_map(|dtype| row.best.get(dtype.name()));
            best.filter_map(gain).collect::<Vec<_>>()
        };
        (direction, rows.flat_map(formats).collect::<Vec<_>>())
    };
    Direction::ALL.map(of).into_iter().filter(|(_, gains)| !gains.is_empty()).collect()
}

fn headlines(gains: &[(Direction, Vec<Gain>)], errors: &[ErrorShare]) -> Vec<Headline> {
    let mut found = Vec::new();
    for (direction, gains) in gains {
        for dtype in [DType::F32, DType::F16] {
            let ratios = gains.iter().filter(|gain| gain.dtype == dtype.name());
            let logarithms: Vec<f64> =
                ratios.map(|gain| (gain.baseline_us / gain.us).ln()).collect();
            if logarithms.is_empty() {
                continue;
            }
            let count = logarithms.len();
            let mean = (logarithms.iter().sum::<f64>() / count as f64).exp();
            let workloads = if count == 1 { "workload" } else { "workloads" };
            found.push(Headline {
                figure: format!("{mean:.1}\u{d7}"),
                what: format!("{direction} in {dtype} against the baseline, {count} {workloads}"),
            });
        }
    }
    let share =
        |gain: &Gain| Some((gain.floor_us? / gain.us, gain.workload.clone(), gain.dtype.clone()));
    let nearest = gains.iter().flat_map(|(_, gains)| gains).filter_map(share);
    if let Some((share, workload, dtype)) = nearest.max_by(|a, b| a.0.total_cmp(&b.0)) {
        found.push(Headline {
            figure: format!("{:.0} %", 100.0 * share),
            what: format!("of what the L1 data path can do, {workload} in {dtype}"),
        });
    }
    let worst = errors.iter().max_by(|a, b| (a.rel_l2 / a.bound).total_cmp(&(b.rel_l2 / b.bound)));
    if let Some(worst) = worst {
        found.push(Headline {
            figure: format!("{:.0} %", 100.0 * worst.rel_l2 / worst.bound),
            what: "of the allowed error at most, in what calls get".to_owned(),
        });
    }
    found
}

/// The largest error of each dispatched variant, by dtype.
fn error_shares(figures: &[Figure]) -> Vec<ErrorShare> {
    let mut worst: BTreeMap<(String, Option<usize>), ErrorShare> = BTreeMap::new();
    let of_calls = figures.iter().filter(|figure| figure.dispatched && !figure.rel_l2.is_nan());
    for figure in of_calls.filter(|figure| figure.direction.parse::<Direction>().is_ok()) {
        let Ok(dtype) = figure.dtype.parse::<DType>() else { continue };
        let place = DType::ALL.iter().position(|known| *known == dtype);
        let entry = worst.entry((figure.variant.clone(), place)).or_insert_with(|| ErrorShare {
            variant: figure.variant.clone(),
            dtype: figure.dtype.clone(),
            rel_l2: 0.0,
            bound: dtype.rel_l2_bound(),
        });
        entry.rel_l2 = entry.rel_l2.max(figure.rel_l2);
    }
    worst.into_values().collect()
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

pub(super) fn floors_of(figure: &Figure, ceilings: &Ceilings) -> Option<Floors> {
    if figure.direction != Direction::Forward.name() {
        return None;
    }
    Floors::of(&problem_of(figure)?, ceilings)
}

/// The call that was timed, where its workload is built in.
fn problem_of(figure: &Figure) -> Option<Problem> {
    let sizes = Sizes { batch: Some(figure.batch), queries: Some(figure.queries) };
    let (dtype, layout) = (figure.dtype.parse().ok()?, figure.layout.parse().ok()?);
    workload::find(&figure.workload)?.problem(dtype, layout, sizes).ok()
}

/// A kernel, with the knobs that were set.
pub(super) fn name_of(label: &Label, kernel: &KernelCounters) -> String {
    let knobs = label.variant.strip_prefix(id_in(&label.variant)).unwrap_or_default();
    format!("{}{knobs}", kernel.kernel)
}

/// The half-precision forward of each workload as it is usually called, against the bytes it gathers and those it cannot
/// avoid.
fn roofline_of(rows: &[overview::Row], ceilings: &Ceilings) -> String {
    let best =
        rows.iter().filter(|row| is_usual(row)).filter_map(|row| row.best.get(DType::F16.name()));
    let mut marks: Vec<Mark> = Vec::new();
    for best in best.filter(|best| best.direction == Direction::Forward.name()) {
        let Some(problem) = problem_of(best) else { continue };
        let work = Work::of(&problem, Direction::Forward);
        let flop = flop(&problem, &work, Direction::Forward);
        let Figure { workload, locations, layout, .. } = best;
        let mark = |bytes: u64, is_hollow| Mark {
            flop_per_byte: flop / bytes as f64,
            tflop_per_s: flop / best.median_us * 1e-6,
            title: format!("{workload} {locations} {layout}: {}", time(best.median_us)),
            // Once: both marks have the same height.
            label: if is_hollow { workload.clone() } else { String::new() },
            is_hollow,
        };
        marks.extend([mark(work.gathered_bytes, false), mark(work.compulsory_bytes, true)]);
    }
    if marks.is_empty() {
        return String::new();
    }
    let legend = "full: against the bytes gathered through L1, empty: against those that must come from DRAM";
    roofline(("Forward in f16", legend), ceilings, &marks, Place::Page)
}

/// The dispatched variants, and every rung of the ladder. Settings of knobs are in the table only: bars of all settings
/// would hide the variants.
fn panels(counted: &[Counted], figures: &[Figure]) -> Vec<Panel> {
    let shares = |kernel: &KernelCounters| {
        let wavefronts = kernel.get("l1_wavefronts").filter(|count| *count > 0.0);
        let conflicts =
            kernel.get("bank_conflicts").zip(wavefronts).map(|(c, all)| 100.0 * c / all);
        [kernel.get("l1_hit_percent"), conflicts, kernel.get("l1_percent")]
    };
    let mut panels: Vec<Panel> = Vec::new();
    let is_called = |label: &Label| {
        figures.iter().any(|figure| {
            figure.dispatched
                && (&figure.workload, &figure.variant) == (&label.workload, &label.variant)
                && (&figure.locations, &figure.layout) == (&label.locations, &label.layout)
                && figure.dtype == label.dtype
        })
    };
    for Counted { label, kernels, .. } in counted.iter().filter(|p| is_own(&p.label.variant)) {
        let Label { workload, locations, layout, dtype, direction, .. } = label;
        let is_ladder = workload == ladder::WORKLOAD && layout == ladder::LAYOUTS[0].name();
        if !is_ladder && !is_called(label) {
            continue;
        }
        let title = format!("{workload}, {direction} in {dtype}, {locations} locations, {layout}");
        let found = kernels.iter().map(|kernel| (kernel.kernel.clone(), shares(kernel)));
        let found = found.filter(|(_, shares)| shares.iter().any(Option::is_some));
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.kernels.extend(found),
            None => panels.push(Panel { title, is_ladder, kernels: found.collect() }),
        }
    }
    panels.retain(|panel| !panel.kernels.is_empty());
    panels
}

/// Whether a variant runs with its own knobs.
fn is_own(variant: &str) -> bool {
    id_in(variant) == variant
}

fn groups(figures: &[Figure], ceilings: Option<&Ceilings>) -> Vec<Group> {
    let mut cases: Vec<(String, Vec<&Figure>)> = Vec::new();
    for figure in figures {
        let Figure { batch, queries, locations, layout, dtype, direction, .. } = figure;
        let threads = figure.threads.map_or_else(String::new, |count| format!(", {count} threads"));
        let title = format!(
            "{direction} in {dtype}, {locations} locations, {layout}, N={batch}, Lq={queries}{threads}"
        );
        let is_same = |(known, of_case): &&mut (String, Vec<&Figure>)| {
            *known == title && of_case[0].workload == figure.workload
        };
        match cases.iter_mut().find(is_same) {
            Some((_, of_case)) => of_case.push(figure),
            None => cases.push((title, vec![figure])),
        }
    }
    // Figures of a CPU come sorted by threads first.
    cases.sort_by_key(|(_, of_case)| workload::table_position(&of_case[0].workload));
    cases.into_iter().filter_map(|(title, of_case)| group(title, &of_case, ceilings)).collect()
}

fn group(title: String, figures: &[&Figure], ceilings: Option<&Ceilings>) -> Option<Group> {
    let first = figures.first()?;
    let way = |figure: &Figure| format!(" ({}, {})", figure.timing.name(), figure.mode);
    let way_of_first = way(first);
    let is_alike = figures.iter().all(|figure| way(figure) == way_of_first);
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
    let [plain, _] = ladder::LAYOUTS;
    let is_ladder = (first.workload.as_str(), first.dtype.as_str())
        == (ladder::WORKLOAD, ladder::DTYPE.name())
        && (first.layout.as_str(), first.locations.as_str()) == (plain.name(), "local")
        && first.direction == Direction::Forward.name()
        && bars.len() > MOST_OF_A_CALL;
    Some(Group {
        workload: first.workload.clone(),
        dtype: first.dtype.clone(),
        title: if is_alike { title + &way_of_first } else { title },
        bars,
        floor_us: ceilings.and_then(|ceilings| floors_of(first, ceilings)).map(|f| f.l1_us),
        is_ladder,
    })
}

/// With more variants than this a case is a ladder, not a choice.
const MOST_OF_A_CALL: usize = 8;
