//! The bars of a report. They are text and boxes, not pictures, so that they stay readable at any width.

use msdeform::{DType, Direction};
use msdeform_lab::Ceilings;
use msdeform_lab::counters::Counted;
use msdeform_lab::device::named::id_in;
use msdeform_lab::record::Figure;
use msdeform_lab::workload::{self, Label};

use serde::Serialize;

use super::tables::Worst;
use crate::ladder::{self, Kernel, kernels};
use crate::overview::{Row, floors_of, is_called};
use crate::table::grouped;

/// Bars under a heading for each group.
pub(super) type Groups<T> = Vec<(String, Vec<T>)>;

/// The dispatched variant on a workload and dtype, compared with the baseline.
#[derive(Serialize)]
pub(super) struct Gain {
    best: Figure,
    baseline_us: f64,
    floor_us: Option<f64>,
    ratio: f64,
}

/// Every workload as it is usually called.
pub(super) fn gains(rows: &[Row]) -> Vec<(&'static str, Groups<Gain>)> {
    let gain = |(row, best): (&Row, &Figure)| {
        let baseline_us = best.median_us * best.speedup?;
        let floor_us = row.floors.get(&best.dtype).map(|floors| floors.l1_us);
        let (best, ratio) = (best.clone(), baseline_us / best.median_us);
        Some((row.workload.clone(), Gain { best, baseline_us, floor_us, ratio }))
    };
    let of = |direction: Direction| {
        let is_shown = |row: &&Row| row.is_usual && row.direction == direction.name();
        let best = rows.iter().filter(is_shown).flat_map(|row| {
            DType::FAST.iter().filter_map(move |dtype| Some((row, row.best.get(dtype.name())?)))
        });
        (direction.name(), grouped(best.filter_map(gain)))
    };
    Direction::ALL.map(of).into_iter().filter(|(_, gains)| !gains.is_empty()).collect()
}

/// The time of the gather through L1 alone, where that is known.
fn l1_floor_us(figure: &Figure, ceilings: Option<&Ceilings>) -> Option<f64> {
    Some(floors_of(figure, ceilings?)?.l1_us)
}

/// The largest errors of what calls get, with dtypes in their order.
pub(super) fn worst_errors(figures: &[Figure]) -> Vec<Worst> {
    let place = |dtype: &str| DType::ALL.iter().position(|known| known.name() == dtype);
    let is_known = |figure: &&Figure| {
        figure.direction.parse::<Direction>().is_ok() && place(&figure.dtype).is_some()
    };
    let dispatched = figures.iter().filter(|figure| figure.dispatched);
    let mut worst = Worst::of(dispatched.filter(is_known));
    worst.sort_by_key(|worst| (worst.variant.clone(), place(&worst.dtype)));
    worst
}

/// The figures that a report begins with, with their units, and what they are.
pub(super) fn headlines(gains: &[(&str, Groups<Gain>)], errors: &[Worst]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (direction, gains) in gains {
        for dtype in [DType::F32, DType::F16] {
            let gains = gains.iter().flat_map(|(_, gains)| gains);
            let gains = gains.filter(|gain| gain.best.dtype == dtype.name());
            let logarithms: Vec<f64> = gains.map(|gain| gain.ratio.ln()).collect();
            if logarithms.is_empty() {
                continue;
            }
            let count = logarithms.len();
            let mean = (logarithms.iter().sum::<f64>() / count as f64).exp();
            let workloads = if count == 1 { "workload" } else { "workloads" };
            let what = format!("{direction} in {dtype} against the baseline, {count} {workloads}");
            found.push((format!("{mean:.1}\u{d7}"), what));
        }
    }
    let share = |gain: &Gain| {
        let Figure { workload, dtype, median_us, .. } = &gain.best;
        let what = format!("of what the L1 data path can do, {workload} in {dtype}");
        Some((gain.floor_us? / median_us, what))
    };
    let all = gains.iter().flat_map(|(_, gains)| gains).flat_map(|(_, gains)| gains);
    let nearest = all.filter_map(share);
    let worst = errors.iter().map(|worst| worst.rel_l2 / worst.bound).max_by(f64::total_cmp);
    let worst =
        worst.map(|share| (share, "of the allowed error at most, in what calls get".to_owned()));
    let shares = nearest.max_by(|a, b| a.0.total_cmp(&b.0)).into_iter().chain(worst);
    found.extend(shares.map(|(share, what)| (format!("{:.0} %", 100.0 * share), what)));
    found
}

/// What a panel shows of a kernel, each in percent: of its sectors, of its wavefronts, of the time.
pub(super) const SHARES: [&str; 3] =
    ["sectors found in L1", "lost to bank conflicts", "L1 data path busy"];

/// The kernels of one case, with knobs as they set themselves, and their [`SHARES`].
#[derive(Serialize)]
pub(super) struct Panel {
    title: String,
    kernels: Vec<(String, [Option<f64>; 3])>,
}

/// Every rung of the ladder, and the dispatched variants. Settings of knobs are in the table only: bars of all settings
/// would hide the variants.
pub(super) fn panels(counted: &[Counted], figures: &[Figure]) -> (Vec<Panel>, Vec<Panel>) {
    let own = counted.iter().filter(|counted| is_own(&counted.label.variant));
    let shown = kernels(own).filter_map(|Kernel { name, label, counters }| {
        let is_ladder =
            label.workload == ladder::WORKLOAD && label.layout == ladder::LAYOUTS[0].name();
        let shares = ["l1_hit_percent", "conflict_percent", "l1_percent"];
        let shares = shares.map(|name| counters.get(name).copied());
        let is_shown = is_ladder || is_called(&label, figures);
        let Label { workload, locations, layout, dtype, direction, .. } = label;
        let title = format!("{workload}, {direction} in {dtype}, {locations} locations, {layout}");
        let is_read = shares.iter().any(Option::is_some);
        (is_shown && is_read).then_some(((is_ladder, title), (name, shares)))
    });
    let (of_ladder, of_calls): (Vec<_>, Vec<_>) =
        grouped(shown).into_iter().partition(|((is_ladder, _), _)| *is_ladder);
    let panel = |((_, title), kernels)| Panel { title, kernels };
    (of_ladder.into_iter().map(panel).collect(), of_calls.into_iter().map(panel).collect())
}

/// Whether a variant runs with its own knobs.
fn is_own(variant: &str) -> bool {
    id_in(variant) == variant
}

/// The variants of one case, slowest first, as a ladder.
#[derive(Serialize)]
pub(super) struct Group {
    workload: String,
    dtype: String,
    /// The rest of the case.
    title: String,
    bars: Vec<Bar>,
    /// The time that is as long as the track.
    longest_us: f64,
    floor_us: Option<f64>,
    pub(super) is_ladder: bool,
}

/// One variant's time on one case.
#[derive(Serialize)]
struct Bar {
    /// The variant, and the clock and mode where the case has several.
    name: String,
    figure: Figure,
    /// The same variant with knobs set, fastest first: the knobs and the time.
    settings: Vec<(String, f64)>,
}

/// Every case with all its variants, by workload.
pub(super) fn groups(figures: &[Figure], ceilings: Option<&Ceilings>) -> Groups<Group> {
    let cases = figures.iter().map(|figure| {
        let Figure { batch, queries, locations, layout, dtype, direction, .. } = figure;
        let threads = figure.threads.map_or_else(String::new, |count| format!(", {count} threads"));
        let title = format!(
            "{direction} in {dtype}, {locations} locations, {layout}, N={batch}, Lq={queries}{threads}"
        );
        ((title, &figure.workload), figure)
    });
    let mut cases = grouped(cases);
    // Figures of a CPU come sorted by threads first.
    cases.sort_by_key(|((_, workload), _)| workload::table_position(workload));
    let groups = cases
        .into_iter()
        .map(|((title, workload), of_case)| (workload.clone(), group(title, &of_case, ceilings)));
    grouped(groups)
}

/// With more variants than this a case is a ladder, not a choice.
const MOST_OF_A_CALL: usize = 8;

/// The case of some figures, of which there is one.
fn group(title: String, figures: &[&Figure], ceilings: Option<&Ceilings>) -> Group {
    let first = figures[0];
    let way = |figure: &Figure| format!(" ({}, {})", figure.timing.name(), figure.mode);
    let is_alike = figures.iter().all(|figure| way(figure) == way(first));
    let named = |figure: &Figure, variant: &str| {
        if is_alike { variant.to_owned() } else { format!("{variant}{}", way(figure)) }
    };
    let (own, set): (Vec<&Figure>, Vec<&Figure>) =
        figures.iter().partition(|figure| is_own(&figure.variant));
    // What was only ever timed with knobs set has a bar of its own.
    let by_name = own.into_iter().chain(set);
    let by_name = by_name.map(|figure| (named(figure, id_in(&figure.variant)), figure.clone()));
    let bars = grouped(by_name).into_iter().map(|(_, mut figures)| {
        let figure = figures.remove(0);
        figures.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
        let knobs =
            |variant: &str| variant[id_in(variant).len()..].trim_start_matches(':').to_owned();
        let settings = figures.iter().map(|set| (knobs(&set.variant), set.median_us)).collect();
        Bar { name: named(&figure, &figure.variant), figure, settings }
    });
    let mut bars: Vec<Bar> = bars.collect();
    bars.sort_by(|a, b| b.figure.median_us.total_cmp(&a.figure.median_us));
    let [plain, _] = ladder::LAYOUTS;
    let is_ladder = (first.workload.as_str(), first.dtype.as_str())
        == (ladder::WORKLOAD, ladder::DTYPE.name())
        && (first.layout.as_str(), first.locations.as_str()) == (plain.name(), "local")
        && first.direction == Direction::Forward.name()
        && bars.len() > MOST_OF_A_CALL;
    Group {
        workload: first.workload.clone(),
        dtype: first.dtype.clone(),
        title: if is_alike { title + &way(first) } else { title },
        longest_us: figures.iter().map(|figure| figure.median_us).fold(0.0, f64::max),
        floor_us: l1_floor_us(first, ceilings),
        bars,
        is_ladder,
    }
}
