//! The bars of a report. They are text and boxes, not pictures, so that they stay readable at any width.

use askama::Template;
use msdeform::{DType, Direction};
use msdeform_lab::Ceilings;
use msdeform_lab::counters::{Counted, KernelCounters};
use msdeform_lab::device::named::id_in;
use msdeform_lab::digits::{three_digits, time};
use msdeform_lab::record::Figure;
use msdeform_lab::workload::{self, Label};

use super::is_usual;
use super::tables::Worst;
use crate::ladder;
use crate::overview::{Row, floors_of, is_called};
use crate::table::grouped;

/// A bar in its track, with marks on it; all lengths in percent of the track.
#[derive(Template)]
#[template(path = "track.html")]
pub(super) struct Track {
    class: &'static str,
    percent: f64,
    title: String,
    floor: Option<f64>,
    pub(super) settings: Vec<Setting>,
}

/// The time of the same variant with knobs set, as a mark on its track.
pub(super) struct Setting {
    percent: f64,
    title: String,
    pub(super) knobs: String,
    pub(super) time: String,
}

impl Track {
    fn new(class: &'static str, share: f64, title: String) -> Self {
        Self { class, percent: percent(share), title, floor: None, settings: Vec::new() }
    }
}

/// What is no share is drawn as none.
fn percent(share: f64) -> f64 {
    if share.is_finite() { 100.0 * share.clamp(0.0, 1.0) } else { 0.0 }
}

/// Bars under a heading for each group.
#[derive(Template)]
#[template(path = "bars.html")]
pub(super) struct Bars {
    groups: Vec<(String, Vec<DtypeBar>)>,
    /// The class of what bars are compared with.
    class: &'static str,
}

impl Bars {
    pub(super) fn have_floors(&self) -> bool {
        self.groups.iter().flat_map(|(_, bars)| bars).any(|bar| bar.track.floor.is_some())
    }
}

/// The bar of a dtype, its value, and what the value is compared with.
struct DtypeBar {
    dtype: String,
    track: Track,
    value: String,
    against: String,
}

/// The dispatched variant on a workload and dtype, compared with the baseline.
pub(super) struct Gain {
    workload: String,
    dtype: String,
    us: f64,
    baseline_us: f64,
    floor_us: Option<f64>,
}

/// Every workload as it is usually called.
pub(super) fn gains(rows: &[Row], ceilings: Option<&Ceilings>) -> Vec<(Direction, Vec<Gain>)> {
    let gain = |best: &Figure| {
        Some(Gain {
            workload: best.workload.clone(),
            dtype: best.dtype.clone(),
            us: best.median_us,
            baseline_us: best.median_us * best.speedup?,
            floor_us: l1_floor_us(best, ceilings),
        })
    };
    let of = |direction: Direction| {
        let rows =
            rows.iter().filter(|row| is_usual(row)).filter(|row| row.direction == direction.name());
        let formats = |row: &Row| {
            let best = DType::FAST.iter().filter_map(|dtype| row.best.get(dtype.name()));
            best.filter_map(gain).collect::<Vec<_>>()
        };
        (direction, rows.flat_map(formats).collect::<Vec<_>>())
    };
    Direction::ALL.map(of).into_iter().filter(|(_, gains)| !gains.is_empty()).collect()
}

/// The time of the gather through L1 alone, where that is known.
fn l1_floor_us(figure: &Figure, ceilings: Option<&Ceilings>) -> Option<f64> {
    Some(floors_of(figure, ceilings?)?.l1_us)
}

/// The dispatched variants' times, as a share of the baseline's.
pub(super) fn times(gains: &[Gain]) -> Bars {
    let bars = gains.iter().map(|gain| {
        let Gain { workload, dtype, us, baseline_us, floor_us } = gain;
        let floor = floor_us.map(|floor| format!(", L1 floor {}", time(floor))).unwrap_or_default();
        let (value, baseline) = (time(*us), time(*baseline_us));
        let title = format!("{workload} {dtype}: {value}, baseline {baseline}{floor}");
        let mut track = Track::new("chosen", us / baseline_us, title);
        track.floor = floor_us.map(|floor| percent(floor / baseline_us));
        let against = format!("{:.1}\u{d7}", baseline_us / us);
        (workload.clone(), DtypeBar { dtype: dtype.clone(), track, value, against })
    });
    Bars { groups: grouped(bars), class: "value strong" }
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

/// The largest errors, as a share of what the accuracy contract allows.
pub(super) fn errors(errors: &[Worst]) -> Option<Bars> {
    let bars = errors.iter().map(|worst| {
        let Worst { variant, dtype, rel_l2, .. } = worst;
        let (share, value) = (rel_l2 / worst.bound(), format!("{rel_l2:.1e}"));
        let class = if share <= 1.0 { "chosen" } else { "over" };
        let track = Track::new(class, share, format!("{variant} {dtype}: {value}"));
        let against = format!("of {:.0e}", worst.bound());
        (variant.clone(), DtypeBar { dtype: dtype.clone(), track, value, against })
    });
    (!errors.is_empty()).then(|| Bars { groups: grouped(bars), class: "value" })
}

/// The figures that a report begins with, with their units, and what they are.
pub(super) fn headlines(
    gains: &[(Direction, Vec<Gain>)],
    errors: &[Worst],
) -> Vec<(String, String)> {
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
            let what = format!("{direction} in {dtype} against the baseline, {count} {workloads}");
            found.push((format!("{mean:.1}\u{d7}"), what));
        }
    }
    let share = |gain: &Gain| {
        let what = format!("of what the L1 data path can do, {} in {}", gain.workload, gain.dtype);
        Some((gain.floor_us? / gain.us, what))
    };
    let nearest = gains.iter().flat_map(|(_, gains)| gains).filter_map(share);
    let worst = errors.iter().map(|worst| worst.rel_l2 / worst.bound()).max_by(f64::total_cmp);
    let worst =
        worst.map(|share| (share, "of the allowed error at most, in what calls get".to_owned()));
    let shares = nearest.max_by(|a, b| a.0.total_cmp(&b.0)).into_iter().chain(worst);
    found.extend(shares.map(|(share, what)| (format!("{:.0} %", 100.0 * share), what)));
    found
}

/// What a panel shows of a kernel, each in percent: of its sectors, of its wavefronts, of the time.
pub(super) const SHARES: [&str; 3] =
    ["sectors found in L1", "lost to bank conflicts", "L1 data path busy"];

/// Bars and numbers of a kernel's [`SHARES`], where they were read.
type Shares = [Option<(Track, String)>; 3];

/// The kernels of one case, with knobs as they set themselves: a column of bars for each of [`SHARES`].
#[derive(Template)]
#[template(path = "panel.html")]
pub(super) struct Panel {
    title: String,
    pub(super) kernels: Vec<(String, Shares)>,
}

/// Every rung of the ladder, and the dispatched variants. Settings of knobs are in the table only: bars of all settings
/// would hide the variants.
pub(super) fn panels(counted: &[Counted], figures: &[Figure]) -> (Vec<Panel>, Vec<Panel>) {
    let kernels = counted.iter().filter(|p| is_own(&p.label.variant)).flat_map(|counted| {
        let Label { workload, locations, layout, dtype, direction, .. } = &counted.label;
        let is_ladder = workload == ladder::WORKLOAD && layout == ladder::LAYOUTS[0].name();
        let is_shown = is_ladder || is_called(&counted.label, figures);
        let title = format!("{workload}, {direction} in {dtype}, {locations} locations, {layout}");
        let kernels = counted.kernels.iter().filter(move |_| is_shown).filter_map(shares_of);
        kernels.map(move |kernel| ((is_ladder, title.clone()), kernel))
    });
    let (mut of_ladder, mut of_calls) = (Vec::new(), Vec::new());
    for ((is_ladder, title), kernels) in grouped(kernels) {
        let panels = if is_ladder { &mut of_ladder } else { &mut of_calls };
        panels.push(Panel { title, kernels });
    }
    (of_ladder, of_calls)
}

/// A kernel, if any of its shares was read.
fn shares_of(kernel: &KernelCounters) -> Option<(String, Shares)> {
    let wavefronts = kernel.get("l1_wavefronts").filter(|count| *count > 0.0);
    let conflicts = kernel.get("bank_conflicts").zip(wavefronts).map(|(c, all)| 100.0 * c / all);
    let shares = [kernel.get("l1_hit_percent"), conflicts, kernel.get("l1_percent")];
    let name = &kernel.kernel;
    let mut titles = SHARES.into_iter();
    let bars = shares.map(|share| {
        let (title, percent) = (titles.next()?, share?);
        let number = three_digits(percent);
        let title = format!("{name}, {title}: {number} %");
        Some((Track::new("bar", percent / 100.0, title), number))
    });
    bars.iter().any(Option::is_some).then(|| (name.clone(), bars))
}

/// Whether a variant runs with its own knobs.
fn is_own(variant: &str) -> bool {
    id_in(variant) == variant
}

/// The variants of one case, slowest first, as a ladder.
#[derive(Template)]
#[template(path = "group.html")]
pub(super) struct Group {
    pub(super) workload: String,
    dtype: String,
    /// The rest of the case.
    pub(super) title: String,
    pub(super) bars: Vec<Bar>,
    pub(super) is_ladder: bool,
}

/// One variant's time on one case.
pub(super) struct Bar {
    /// The variant, and the clock and mode where the case has several.
    pub(super) name: String,
    pub(super) time: String,
    pub(super) dispatched: bool,
    pub(super) track: Track,
    speedup: String,
}

/// Every case with all its variants, by workload.
pub(super) fn groups(figures: &[Figure], ceilings: Option<&Ceilings>) -> Vec<(String, Vec<Group>)> {
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
    let mut bars: Vec<(&Figure, Vec<&Figure>)> = Vec::new();
    // What was only ever timed with knobs set has a bar of its own.
    for figure in own.into_iter().chain(set) {
        let name = named(figure, id_in(&figure.variant));
        match bars.iter_mut().find(|(bar, _)| named(bar, &bar.variant) == name) {
            Some((_, settings)) => settings.push(figure),
            None => bars.push((figure, Vec::new())),
        }
    }
    bars.sort_by(|(a, _), (b, _)| b.median_us.total_cmp(&a.median_us));
    let longest = figures.iter().map(|figure| figure.median_us).fold(0.0, f64::max);
    let floor = l1_floor_us(first, ceilings).map(|floor_us| percent(floor_us / longest));
    let [plain, _] = ladder::LAYOUTS;
    let is_ladder = (first.workload.as_str(), first.dtype.as_str())
        == (ladder::WORKLOAD, ladder::DTYPE.name())
        && (first.layout.as_str(), first.locations.as_str()) == (plain.name(), "local")
        && first.direction == Direction::Forward.name()
        && bars.len() > MOST_OF_A_CALL;
    let bars = bars.into_iter().map(|(figure, settings)| {
        bar(named(figure, &figure.variant), figure, settings, floor, longest)
    });
    Group {
        workload: first.workload.clone(),
        dtype: first.dtype.clone(),
        title: if is_alike { title + &way(first) } else { title },
        bars: bars.collect(),
        is_ladder,
    }
}

fn bar(
    name: String,
    figure: &Figure,
    mut settings: Vec<&Figure>,
    floor: Option<f64>,
    longest: f64,
) -> Bar {
    settings.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
    let us = figure.median_us;
    let error = match figure.rel_l2 {
        error if error.is_nan() => String::new(),
        error => format!(", error {error:.1e}"),
    };
    let title = format!("{name}: {} +- {}{error}", time(us), time(figure.mad_us));
    let class = if figure.dispatched { "chosen" } else { "bar" };
    let mut track = Track::new(class, us / longest, title);
    track.floor = floor;
    // Fastest first.
    track.settings.extend(settings.into_iter().map(|setting| {
        let (id, time) = (id_in(&setting.variant), time(setting.median_us));
        let knobs = setting.variant[id.len()..].trim_start_matches(':').to_owned();
        let title = format!("{name} {knobs}: {time}");
        Setting { percent: percent(setting.median_us / longest), title, knobs, time }
    }));
    let speedup = figure.speedup.map(|ratio| format!("{ratio:.1}\u{d7}")).unwrap_or_default();
    Bar { name, time: time(us), dispatched: figure.dispatched, track, speedup }
}
